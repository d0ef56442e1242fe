"""The command that compares Eagre and llama.cpp, with stand-ins for both."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from benchmarks import peers
from benchmarks.peers import llama_cpp, num_processors
from tests.benchmarks.serving.stand_ins import PAIR, Bench


def test_command(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "chosen_servers", lambda _: PAIR)
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
        "ratios": {"Eagre/llama.cpp": pytest.approx((1 + 127 / 4) / (1 + 127 / 8))},
    }
    assert [turn["report"]["num_requests"] for turn in figures["turns"] if turn["report"]] == [3, 3]
    assert capsys.readouterr().out.split()[0] == "load"


def test_the_command_of_llama_cpp() -> None:
    server = llama_cpp("llama-server", Path("m.gguf"), 4, 1536, ["--mlock"])
    port = server.url.rpartition(":")[2]
    command = server.command
    assert command[:7] == f"llama-server --model m.gguf --host 127.0.0.1 --port {port}".split()
    assert command[command.index("--ctx-size") + 1] == str(4 * 1536)
    assert command[command.index("--threads") + 1] == str(num_processors())
    assert command[-1] == "--mlock"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--llama-server nowhere/llama-server", "--llama-server: there is no executable nowhere/llama-server"),
        ("--llama-server sh --llama-model nowhere.gguf", "--llama-model: there is no file nowhere.gguf"),
        ("--llama-server sh --rounds 0", "--rounds: must be at least 1, not 0"),
        ("--llama-server sh --concurrency 4 0", "--concurrency: must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_compared(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(arguments.split())
    assert message in capsys.readouterr().err
