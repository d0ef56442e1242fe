"""The order of measurements and the table of figures, with stand-ins for servers and loads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from benchmarks import peers
from benchmarks.serving import peer_loads
from benchmarks.serving.load import Workload
from benchmarks.serving.peer_server import Peer, PeerServer
from benchmarks.serving.resident_memory import ResidentMemory
from benchmarks.serving.trace import Arrival, Report, Trace

PAIR = (Peer("Eagre", lambda port: ["eagre", str(port)], "/"), Peer("llama.cpp", lambda port: ["llama"], "/"))
SPEEDS = {"Eagre": 8.0, "llama.cpp": 4.0}  # tokens per second of each stream


class FakeServer(PeerServer):
    @property
    def memory(self) -> ResidentMemory:
        return ResidentMemory(now=2 << 20, peak=3 << 20)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        yield


class Bench:
    """Stand-ins for servers and loads, which note what is started and measured."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.loads: list[Workload] = []
        self.others: list[float] = []  # the shares of other processes in the next turns; afterwards 0

    @contextlib.contextmanager
    def started_peer(self, peer: Peer) -> Iterator[PeerServer]:
        self.starts.append(peer.name)
        memory = ResidentMemory(now=1 << 20, peak=2 << 20)
        yield FakeServer(peer.name, f"http://{peer.name}", "stub", 1, SPEEDS[peer.name], 0.0, memory)

    def measure(self, load: Workload) -> Report:
        self.loads.append(load)
        speed = SPEEDS[load.url.removeprefix("http://")]
        arrivals = [Arrival(1 + index / speed, 1) for index in range(load.num_output_tokens)]
        made = Trace(0.0, arrivals, arrivals[-1].time, load.num_output_tokens, num_cached_tokens=load.num_shared_tokens)
        return Report.of([made] * load.num_requests, concurrency=1, num_output_tokens=load.num_output_tokens)

    def share(self) -> float:
        return self.others.pop(0) if self.others else 0.0

    @property
    def measured(self) -> list[Workload]:
        """The loads without those that warm up."""
        return self.loads[1::2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench()
    monkeypatch.setattr(peers, "started_peer", bench.started_peer)
    monkeypatch.setattr(peers, "measure_apart", bench.measure)
    monkeypatch.setattr(peers, "Disturbance", lambda: bench)
    return bench


def test_servers_alternate_and_get_the_same_new_prompts(bench: Bench) -> None:
    loads = [peer_loads.decode(1), peer_loads.prefix()]
    peers.Rounds(PAIR, loads, max_others=1.0, seed=0).run(num_rounds=2)
    # Each server once uncounted, and then one round in each order.
    assert bench.starts == ["Eagre", "llama.cpp", "Eagre", "llama.cpp", "llama.cpp", "Eagre"]
    there, back = ["http://Eagre", "http://llama.cpp"], ["http://llama.cpp", "http://Eagre"]
    assert [load.url for load in bench.measured] == [*there, *there, *back, *back]
    prompts = [tuple(map(tuple, load.token_prompts())) for load in bench.measured]
    assert prompts[::2] == prompts[1::2]
    assert len(set(prompts)) == 4
    assert not {load.seed for load in bench.measured} & {load.seed for load in bench.loads[::2]}


def test_a_disturbed_turn_is_taken_again_with_other_prompts(bench: Bench) -> None:
    bench.others = [0.2, 0.01]
    turns = peers.Rounds(PAIR, [peer_loads.prefill()], max_others=0.05, seed=0).run(num_rounds=1)
    assert [turn.others for turn in turns if turn.load == "prefill"] == [0.01, 0.0]
    assert [load.url for load in bench.measured] == ["http://Eagre", "http://Eagre", "http://llama.cpp"]
    first, second, other = (load.seed for load in bench.measured)
    assert first == other != second


def test_the_least_disturbed_of_all_tries_counts(bench: Bench) -> None:
    bench.others = [0.9, 0.5, 0.7, 0.8, 0.6]
    turns = peers.Rounds(PAIR, [peer_loads.prefill()], max_others=0.05, seed=0).run(num_rounds=1)
    assert turns[0].others == 0.5


def test_table(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    turns = peers.Rounds(PAIR, [peer_loads.decode(1), peer_loads.prefix()], max_others=1.0, seed=0).run(num_rounds=2)
    capsys.readouterr()
    peers.print_table(peers.rows(turns, ("Eagre", "llama.cpp")), ("Eagre", "llama.cpp"))
    table = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert "load figure Eagre llama.cpp ratio" in table
    assert "c1 gap p50 125.0 (125.0..125.0) 250.0 (250.0..250.0) 0.50" in table
    assert "prefix cached tok 960.0 (960.0..960.0) 960.0 (960.0..960.0) 1.00" in table
    assert "server cold start, s 8.00 (8.00..8.00) 4.00 (4.00..4.00) 2.00" in table
    assert "server RSS MiB peak 3.00 (3.00..3.00) 3.00 (3.00..3.00) 1.00" in table
    assert "c1 others, % 0.00 (0.00..0.00) 0.00 (0.00..0.00) -" in table


def test_ratio_is_of_medians_and_needs_both() -> None:
    assert peers.Row("c1", "tok/s", ([1.0, 30.0, 2.0], [4.0, 4.0, 1.0])).ratio == 0.5
    assert peers.Row("c1", "tok/s", ([1.0], [])).cells() == ["c1", "tok/s", "1.00", "-", "-"]


def test_figures_of_requests_that_all_failed() -> None:
    report = Report.of([Trace(0.0, error="HTTP 500")], concurrency=1, num_output_tokens=8)
    assert peer_loads.figures_of(report) == {}


def test_loads() -> None:
    assert [peer_loads.decode(clients).workload.num_requests for clients in (1, 4, 16, 64)] == [6, 24, 48, 128]
    load = peer_loads.prefix().of_size(4).of("http://h:1", "m", 7)
    assert load == replace(peer_loads.prefix().workload, url="http://h:1", model="m", seed=7, num_requests=4)
    warm = peer_loads.warm_up(load, seed=8)
    assert (warm.concurrency, warm.num_requests, warm.num_shared_tokens, warm.seed) == (8, 8, 0, 8)


def test_command(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "chosen_peers", lambda _: PAIR)
    file = tmp_path / "figures.json"
    arguments = f"--llama-server sh --loads decode --concurrency 2 --requests 3 --rounds 1 --json {file}"
    assert peers.main(arguments.split()) == 0
    figures = orjson.loads(file.read_bytes())
    assert figures["commands"]["Eagre"] == "eagre 0"
    assert figures["table"][0] == {
        "load": "c2",
        "figure": "tok/s",
        "medians": {
            "Eagre": pytest.approx(3 * 128 / (1 + 127 / 8)),
            "llama.cpp": pytest.approx(3 * 128 / (1 + 127 / 4)),
        },
        "ratio": pytest.approx((1 + 127 / 4) / (1 + 127 / 8)),
    }
    assert [turn["report"]["num_requests"] for turn in figures["turns"] if turn["report"]] == [3, 3]
    assert capsys.readouterr().out.startswith("    load")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--llama-server nowhere/llama-server", "--llama-server: there is no executable nowhere/llama-server"),
        ("--llama-server sh --llama-model nowhere.gguf", "--llama-model: there is no file nowhere.gguf"),
        ("--llama-server sh --rounds 0", "--rounds must be at least 1, not 0"),
        ("--llama-server sh --concurrency 4 0", "--concurrency must be at least 1, not 0"),
    ],
)
def test_servers_that_cannot_be_compared_are_refused(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        peers.main(arguments.split())
    assert message in capsys.readouterr().err
