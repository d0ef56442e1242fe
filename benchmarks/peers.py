"""Eagre beside llama.cpp's server: the same prompts over HTTP and SSE, in turn, on the same processors.

    python -m benchmarks.peers --llama-server build/bin/llama-server
    taskset --cpu-list 0,1 python -m benchmarks.peers --llama-model model-q4_0.gguf --rounds 5 --json peers.json

llama-server is built from the sources of llama.cpp, which the source package of llama-cpp-python holds:

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python
    tar xzf llama_cpp_python-*.tar.gz && cd llama_cpp_python-*/vendor/llama.cpp
    cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON
    cmake --build build --target llama-server llama-quantize

What is measured, in every round, of both servers:

    cN        N clients in a closed loop, prompts of 128 random tokens, 128 tokens out
    prefix    8 clients, prompts of 1,024 tokens of which all share the first 960, 32 tokens out
    prefill   1 client, prompts of 1,024 random tokens, 1 token out
    server    process start to first token, and resident memory: then, and the most in the whole round

A round starts both servers anew and then takes each measurement of one right after the other's, since a
machine drifts by more in minutes than two servers may differ. The one that is not measured is stopped by a
signal meanwhile: it takes memory and no time. The order changes from round to round. One start of each before
the first round is not counted: it reads the files into the machine's memory, and compiles what is kept.

Both get the same token ids, greedy, with ends of sequence ignored, and a connection for each request
(llama-server closes it after a stream). Tokens are those that the server counts; a chunk is one with text.
Both run on the processors that this process may run on, and so do the clients: they take their share.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.serving import peer_loads
from benchmarks.serving.command import run, write_figures
from benchmarks.serving.load import measure_apart
from benchmarks.serving.peer_loads import PeerLoad, figures_of
from benchmarks.serving.peer_server import Peer, PeerServer, eagre, llama_cpp, started_peer
from benchmarks.serving.processor import Disturbance
from benchmarks.serving.trace import Report
from server.startup.model_store import ensure_model
from server.startup.progress import ProgressReporter
from server.startup.settings import DEFAULT_MODEL

PROGRAM = "benchmarks.peers"
LOADS = ("decode", "prefix", "prefill")
MAX_TRIES = 5  # of a turn that others disturb
OTHERS = "others, %"
WIDTHS = (8, 13, 26, 26, 9)
LEGEND = (
    "times in ms, medians of rounds (least..most), ratio of the medians; gap: between chunks of one stream;\n"
    "tok/s: output, prefill included; cached tok: of each prompt, as the server says; others: share of the whole\n"
    "machine's processor time that other processes had meanwhile"
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one round said of one server."""

    round: int
    load: str  # or "server", for what is not of a load
    server: str
    figures: dict[str, float]  # those of the table, in its order
    others: float | None  # share of the processor that other processes had meanwhile, 0 to 1
    report: Report | None

    @property
    def is_good(self) -> bool:
        return self.report is None or not (self.report.num_failed or self.report.num_off_length)


class Rounds:
    """Takes the turns of all servers, and tells of each on standard error."""

    def __init__(self, peers: Sequence[Peer], loads: Sequence[PeerLoad], max_others: float, seed: int) -> None:
        self._peers = peers
        self._loads = loads
        self._max_others = max_others
        self._seeds = random.Random(seed)

    def run(self, num_rounds: int) -> list[Turn]:
        """
        Raises:
            ServerFailed: a server did not start.
            OSError: it did not answer.
        """
        for peer in self._peers:
            print(f"first start of {peer.name}, not counted", file=sys.stderr, flush=True)
            with started_peer(peer):
                pass
        return [turn for index in range(num_rounds) for turn in self._round(index)]

    def _round(self, index: int) -> list[Turn]:
        turns = []
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(started_peer(peer)) for peer in self._order(index)]
            for load in self._loads:
                seed = self._next_seed()
                turns += [self._least_disturbed(index, load, server, seed) for server in servers]
            turns += [server_turn(index, server) for server in servers]
        for turn in turns[-len(servers) :]:
            tell(turn)
        return turns

    def _order(self, index: int) -> Sequence[Peer]:
        return self._peers[::-1] if index % 2 else self._peers

    def _least_disturbed(self, index: int, load: PeerLoad, server: PeerServer, seed: int) -> Turn:
        """The first that is quiet enough, or the quietest of MAX_TRIES."""
        tries = []
        for _ in range(MAX_TRIES):
            turn = self._turn(index, load, server, seed)
            tell(turn)
            tries.append(turn)
            if turn.others is None or turn.others <= self._max_others:
                break
            seed = self._next_seed()  # the prompts of this one are in the server's prefix cache now
        return min(tries, key=lambda turn: turn.others or 0.0)

    def _turn(self, index: int, load: PeerLoad, server: PeerServer, seed: int) -> Turn:
        workload = load.of(server.url, server.model, seed)
        with server.awake():
            measure_apart(peer_loads.warm_up(workload, self._next_seed()))
            disturbance = Disturbance()
            report = measure_apart(workload)
            others = disturbance.share()
        figures = figures_of(report)
        shown = {name: figures[name] for name in load.figures if name in figures}
        return Turn(index, load.name, server.name, shown, others, report)

    def _next_seed(self) -> int:
        return self._seeds.getrandbits(32)


def server_turn(index: int, server: PeerServer) -> Turn:
    """What the server took at its start and, at the end of its round, in all."""
    figures = {"cold start, s": server.cold_start}
    if server.memory_at_start is not None and (memory := server.memory) is not None:
        figures["RSS MiB start"] = server.memory_at_start.now / 2**20
        figures["RSS MiB peak"] = memory.peak / 2**20
    return Turn(index, "server", server.name, figures, server.others_at_start, None)


def tell(turn: Turn) -> None:
    """One line of progress, and one for each thing that went wrong."""
    shown = [f"{name} {value:,.1f}" for name, value in turn.figures.items()]
    if turn.others is not None:
        shown.append(f"others {turn.others:.1%}")
    lines = [f"round {turn.round + 1}, {turn.load}, {turn.server}: {', '.join(shown)}"]
    if turn.report is not None:
        num_requests = turn.report.num_requests
        lines += [f"  failed ({turn.report.num_failed} of {num_requests}): {error}" for error in turn.report.errors]
        if turn.report.num_off_length:
            lines.append(f"  {turn.report.num_off_length} of {num_requests} ended with another length")
    print("\n".join(lines), file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of two servers, in the order of the rounds."""

    load: str
    figure: str
    samples: tuple[list[float], list[float]]

    @property
    def ratio(self) -> float | None:
        """Of the first server's median to the second's; None where that is nothing or 0."""
        first, second = self.samples
        return median(first) / median(second) if first and second and median(second) else None

    def cells(self) -> list[str]:
        ratio = "-" if self.ratio is None or self.figure == OTHERS else f"{self.ratio:.2f}"
        return [self.load, self.figure, *map(spread, self.samples), ratio]

    def to_dict(self, servers: Sequence[str]) -> dict[str, Any]:
        medians = {name: median(values) for name, values in zip(servers, self.samples, strict=True) if values}
        return {"load": self.load, "figure": self.figure, "medians": medians, "ratio": self.ratio}


def spread(values: Sequence[float]) -> str:
    """The median, and from where to where the values go if there are several."""
    if not values:
        return "-"

    def number(value: float) -> str:
        return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"

    ends = f" ({number(min(values))}..{number(max(values))})" if len(values) > 1 else ""
    return number(median(values)) + ends


def rows(turns: Sequence[Turn], servers: tuple[str, str]) -> list[Row]:
    """All figures of all turns, a load's one below the other."""
    samples: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for turn in turns:
        others = {} if turn.others is None else {OTHERS: 100 * turn.others}
        for figure, value in (turn.figures | others).items():
            samples.setdefault((turn.load, figure), ([], []))[servers.index(turn.server)].append(value)
    return [Row(load, figure, values) for (load, figure), values in samples.items()]


def print_table(table: Sequence[Row], servers: tuple[str, str]) -> None:
    for cells in (["load", "figure", *servers, "ratio"], *(row.cells() for row in table)):
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))
    print(LEGEND)


def chosen_loads(options: argparse.Namespace) -> list[PeerLoad]:
    loads = [peer_loads.decode(num_clients) for num_clients in options.concurrency if "decode" in options.loads]
    loads += [peer_loads.prefix()] if "prefix" in options.loads else []
    loads += [peer_loads.prefill()] if "prefill" in options.loads else []
    return loads if options.requests is None else [load.of_size(options.requests) for load in loads]


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="for Eagre: a name or a path to a GGUF file")
    parser.add_argument("--eagre-args", default="", help="further arguments of `eagre serve`, as one string")
    parser.add_argument("--llama-server", default="llama-server", metavar="PATH", help="the executable")
    parser.add_argument("--llama-model", metavar="PATH", help="a GGUF file for llama.cpp (default: Eagre's)")
    parser.add_argument("--llama-slots", type=int, default=16, metavar="N", help="requests that llama.cpp runs at once")
    parser.add_argument("--llama-args", default="", help="further arguments of llama-server, as one string")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64], metavar="N", help="clients")
    parser.add_argument("--requests", type=int, metavar="N", help="in each turn (default: 6 to 128, by load)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument(
        "--max-others",
        type=float,
        default=1.0,
        metavar="SHARE",
        help=f"take a turn again, {MAX_TRIES} times at most, if other processes had more of the processor, 0 to 1",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    for name, least in (("llama_slots", 1), ("rounds", 1), ("requests", 1)):
        if (value := vars(options)[name]) is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, not {value}")
    if min(options.concurrency) < 1:
        parser.error(f"--concurrency must be at least 1, not {min(options.concurrency)}")
    if shutil.which(options.llama_server) is None:
        parser.error(f"--llama-server: there is no executable {options.llama_server}")
    if options.llama_model is not None and not Path(options.llama_model).is_file():
        parser.error(f"--llama-model: there is no file {options.llama_model}")
    return options


def chosen_peers(options: argparse.Namespace) -> tuple[Peer, Peer]:
    with ProgressReporter() as progress:
        model = ensure_model(options.model, progress)
    executable = Path(str(shutil.which(options.llama_server))).resolve()
    llama_model = model if options.llama_model is None else Path(options.llama_model)
    return (
        eagre(model.resolve(), shlex.split(options.eagre_args)),
        llama_cpp(str(executable), llama_model.resolve(), options.llama_slots, shlex.split(options.llama_args)),
    )


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    peers = chosen_peers(options)
    servers = (peers[0].name, peers[1].name)
    turns = Rounds(peers, chosen_loads(options), options.max_others, options.seed).run(options.rounds)
    table = rows(turns, servers)
    print_table(table, servers)
    if options.json:
        commands = {peer.name: shlex.join(peer.command(0)) for peer in peers}
        summary = [row.to_dict(servers) for row in table]
        write_figures(options.json, PROGRAM, arguments, commands=commands, table=summary, turns=turns)
    return 0 if all(turn.is_good for turn in turns) else 1


if __name__ == "__main__":
    run(PROGRAM, main)
