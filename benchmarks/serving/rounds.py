"""Rounds in which two servers take turns under the same loads, and the table of their figures."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.serving import peer_loads
from benchmarks.serving.load import measure_apart
from benchmarks.serving.peer_loads import PeerLoad, figures_of
from benchmarks.serving.peer_server import Peer, PeerServer, started_peer
from benchmarks.serving.processor import Disturbance
from server.cli.bench.load.report import Report

MAX_TRIES = 5  # of a turn that others disturb
OTHERS = "others, %"
WIDTHS = (8, 13, 26, 26, 9)  # at least
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
            processor_time = server.processor_time
            report = measure_apart(workload)
            others = disturbance.share()
            figures = figures_of(report)
            if processor_time is not None and (until_now := server.processor_time) is not None:
                figures["processor s"] = until_now - processor_time
        shown = {name: figures[name] for name in load.figures if name in figures}
        return Turn(index, load.name, server.name, shown, others, report)

    def _next_seed(self) -> int:
        return self._seeds.getrandbits(32)


def server_turn(index: int, server: PeerServer) -> Turn:
    """What the server took at its start and, at the end of its round, in all."""
    figures = {"ready, s": server.ready_after, "cold start, s": server.cold_start}
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
    lines = [["load", "figure", *servers, "ratio"], *(row.cells() for row in table)]
    widths = [max(width, *map(len, column)) for width, column in zip(WIDTHS, zip(*lines, strict=True), strict=True)]
    for cells in lines:
        print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))
    print(LEGEND)
