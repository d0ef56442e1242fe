"""How much of the device's speed reaches the clients, and what overlapping host and device gains.

    python -m benchmarks.overlap                               # 1, 16 and 64 streams
    python -m benchmarks.overlap --streams 16 --repeats 5 --websocket

One engine decodes the same prompts in several ways, which take turns:

    bare          its compiled steps alone, one after the other: the most that the device can give
    synchronous   its loop that waits for each step, read by its client in the same process
    overlapped    its loop that dispatches the next step before it waits, read in the same way
    SSE           a server with such an engine and overlap, and clients, each in a process of its own

All figures are tokens per second while every stream flows: prefill, start and end are left out.
On a CPU everything but the bare loop also takes processor time from the device.

Both engines have written to all of their pages before the first figure. The system gives a page its memory when it is
used for the first time, and takes processor time for that: from the server while its streams grow, but from the bare
loop, which knows all of its steps beforehand, before its clock starts.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax

from benchmarks.bare.bare_loop import run_bare
from benchmarks.bare.engine_streams import run_streams
from benchmarks.serving.command import run, write_figures
from benchmarks.serving.load import measure_with_clients
from benchmarks.serving.processor import Disturbance
from benchmarks.serving.server_process import ServerFailed, served_model, started_server
from cache.storage import PAGE_SIZE_BY_BACKEND
from engine.engine import Engine
from server.cli.bench.load.workload import Route, Workload
from server.model_sources.model_store import ensure_model
from server.startup.progress import ProgressReporter
from server.startup.settings import ServerSettings

PROGRAM = "benchmarks.overlap"
NUM_PROMPT_TOKENS = 32
PAGE_SIZE = PAGE_SIZE_BY_BACKEND[jax.default_backend()]  # tokens
# Both engines have pages for so many at least, as the default model has: their number limits the length of a request,
# and that the width of the page tables that each step reads.
NUM_CONTEXT_TOKENS = 8192
NUM_FILLING_STREAMS = 16
LEGEND = (
    "tokens per second while every stream flows: median (least..most); ratios are of medians;\n"
    "without clients: beside what of the bare rate the clients leave of the processors;\n"
    "others: the most that other processes had of the processor in any turn"
)
MAX_TRIES = 10  # of a turn that others disturb


class Rate(NamedTuple):
    """How fast the prompts of a workload were decoded."""

    tokens_per_s: float
    clients: float = 0.0  # share of the processors that clients in a process of their own had, 0 to 1


Way = Callable[[Workload], Rate]  # decodes the workload's prompts


class Turn(NamedTuple):
    """One way's decoding of one set of prompts."""

    rate: Rate
    others: float | None  # share of the processor that other processes had meanwhile, 0 to 1

    @classmethod
    def take(cls, decode: Way, load: Workload) -> Turn:
        disturbance = Disturbance()
        return cls(decode(load), disturbance.share())


@dataclass(frozen=True, slots=True)
class Comparison:
    """All ways with one number of streams."""

    num_streams: int
    turns: dict[str, list[Turn]]  # by way, in the order of the repeats

    def rates(self, way: str) -> list[float]:
        return [turn.rate.tokens_per_s for turn in self.turns[way]]

    def ratio(self, way: str, reference: str) -> float:
        return median(self.rates(way)) / median(self.rates(reference))

    def ratio_without_clients(self, way: str) -> float:
        """Of a way over a network: beside the bare rate, were the processors smaller by what its clients took."""
        left = 1 - median(turn.rate.clients for turn in self.turns[way])
        return self.ratio(way, "bare") / left

    @property
    def others(self) -> float | None:
        """The most that other processes had in any turn."""
        return max(
            (turn.others for turns in self.turns.values() for turn in turns if turn.others is not None), default=None
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "num_streams": self.num_streams,
            "turns": {
                way: [{**turn.rate._asdict(), "others": turn.others} for turn in turns]
                for way, turns in self.turns.items()
            },
            "medians": {way: median(self.rates(way)) for way in self.turns},
            "ratios": {f"{way}/{reference}": self.ratio(way, reference) for way, reference in ratios(self.turns)},
            "ratios_without_clients": {way: self.ratio_without_clients(way) for way in networked(self.turns)},
        }


def networked(ways: Mapping[str, object]) -> list[str]:
    return [way for way in ("SSE", "WebSocket") if way in ways]


def ratios(ways: Mapping[str, object]) -> list[tuple[str, str]]:
    """What the table sets against what."""
    return [(way, "bare") for way in networked(ways)] + [("overlapped", "synchronous")]


def load_engine(settings: ServerSettings) -> Engine:
    """The engine as `eagre serve` would have it."""
    with ProgressReporter() as progress:
        return Engine.load(ensure_model(settings.model, progress), settings.engine_config(), progress)


def all_ways(engine: Engine, url: str, *, websocket: bool) -> dict[str, Way]:
    """The ways in the order of their turns; each leaves its engine idle, since they share a processor."""
    ways: dict[str, Way] = {
        "bare": lambda load: Rate(run_bare(engine, list(load.token_prompts()), load.num_output_tokens).tokens_per_s),
        "synchronous": lambda load: in_process(engine, load, overlap=False),
        "overlapped": lambda load: in_process(engine, load, overlap=True),
        "SSE": lambda load: over_network(url, load, "completions"),
    }
    if websocket:
        ways["WebSocket"] = lambda load: over_network(url, load, "websocket")
    return ways


def in_process(engine: Engine, load: Workload, *, overlap: bool) -> Rate:
    return Rate(run_streams(engine, list(load.token_prompts()), load.num_output_tokens, overlap=overlap).tokens_per_s)


def over_network(url: str, load: Workload, route: Route) -> Rate:
    """
    Raises:
        ServerFailed: a request failed, or the streams never all flowed at once.
    """
    report, clients = measure_with_clients(dataclasses.replace(load, url=url, route=route))
    if report.num_failed or report.full_tokens_per_s is None:
        raise ServerFailed(f"{report.num_failed} of {report.num_requests} requests failed: {report.errors}")
    return Rate(report.full_tokens_per_s, clients)


def compare(ways: Mapping[str, Way], loads: Sequence[Workload], max_others: float = 1.0) -> Comparison:
    """Runs every load in every way; the ways take turns, so that a drift of the machine hits them all.

    A turn in which others had more than `max_others` of the processor is taken again, MAX_TRIES times at most.
    """
    turns: dict[str, list[Turn]] = {way: [] for way in ways}
    for load in loads:
        for way, decode in ways.items():
            turns[way].append(_undisturbed(decode, load, max_others))
    return Comparison(loads[0].concurrency, turns)


def _undisturbed(decode: Way, load: Workload, max_others: float) -> Turn:
    for _ in range(MAX_TRIES):
        turn = Turn.take(decode, load)
        if turn.others is None or turn.others <= max_others:
            break
    return turn


def columns(ways: Mapping[str, object]) -> list[str]:
    fractions = [f"{way}/{reference}" for way, reference in ratios(ways)]
    return ["streams", *ways, *fractions, *(f"{way}/bare without clients" for way in networked(ways)), "others"]


def row(comparison: Comparison) -> list[str]:
    """One line of the table, by `columns`."""
    all_rates = [comparison.rates(way) for way in comparison.turns]
    rates = [f"{median(rates):,.1f} ({min(rates):,.1f}..{max(rates):,.1f})" for rates in all_rates]
    fractions = [f"{comparison.ratio(way, reference):.3f}" for way, reference in ratios(comparison.turns)]
    fractions += [f"{comparison.ratio_without_clients(way):.3f}" for way in networked(comparison.turns)]
    others = "-" if comparison.others is None else f"{comparison.others:.1%}"
    return [str(comparison.num_streams), *rates, *fractions, others]


def print_row(cells: Sequence[str], names: Sequence[str]) -> None:
    widths = [max(len(name), 7 if name in ("streams", "others") or "/" in name else 26) for name in names]
    print("  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)), flush=True)


def pages_of(options: argparse.Namespace) -> int:
    """The cache pages that the largest number of streams needs, and the null page."""
    num_needed = max(options.streams) * pages_each(options.output_len)
    return int(max(num_needed, NUM_CONTEXT_TOKENS // PAGE_SIZE) + 1)


def pages_each(output_len: int) -> int:
    """The cache pages of one stream, with the one that admission keeps in reserve for it."""
    return -(-(NUM_PROMPT_TOKENS + output_len) // PAGE_SIZE) + 1


def use_all_pages(ways: Mapping[str, Way], loads: Sequence[Workload], num_pages: int) -> None:
    """Has both engines compute streams about as long as those of the loads until all of their pages have been used.

    Only full pages of known tokens count: others go back to the front of the free queue, where the next load takes them
    again, and the last token of a stream is never computed. One page is the null page.
    """
    load = max(loads, key=lambda each: each.concurrency)
    num_output_tokens = max(load.num_output_tokens, PAGE_SIZE)  # or streams might fill no page
    # More streams are sooner done, as many as there are pages for.
    most = max((num_pages - 1) // pages_each(num_output_tokens), 1)
    num_streams = min(max(load.concurrency, NUM_FILLING_STREAMS), most)
    load = dataclasses.replace(
        load, concurrency=num_streams, num_requests=num_streams, num_output_tokens=num_output_tokens
    )
    num_full = num_streams * ((load.num_prompt_tokens + load.num_output_tokens - 1) // PAGE_SIZE)
    num_loads = -(-(num_pages - 1) // num_full)
    for index in range(num_loads):  # with prompts of their own, because those of earlier ones are in the prefix cache
        for way in ("overlapped", "SSE"):
            ways[way](dataclasses.replace(load, seed=load.seed + 1 + index))


def compare_all(ways: Mapping[str, Way], model: str, options: argparse.Namespace) -> list[Comparison]:
    """Every number of streams in turn, printing the table as it grows."""
    load = Workload(
        url="", model=model, num_requests=1, num_prompt_tokens=NUM_PROMPT_TOKENS, num_output_tokens=8, seed=options.seed
    )
    for decode in ways.values():
        decode(load)  # a warm-up
    all_streams = [
        dataclasses.replace(load, concurrency=number, num_requests=number, num_output_tokens=options.output_len)
        for number in options.streams
    ]
    use_all_pages(ways, all_streams, options.num_pages)
    print_row(columns(ways), columns(ways))
    comparisons = []
    seeds = random.Random(options.seed)
    for load in all_streams:
        # Prompts of their own in each repeat: an engine has those of earlier ones in its prefix cache.
        loads = [dataclasses.replace(load, seed=seeds.getrandbits(32)) for _ in range(options.repeats)]
        comparisons.append(compare(ways, loads, options.max_others))
        print_row(row(comparisons[-1]), columns(ways))
    print(LEGEND)
    return comparisons


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a name or a path to a GGUF file")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64], metavar="N")
    parser.add_argument("--output-len", type=int, default=128, help="tokens of each stream")
    parser.add_argument("--repeats", type=int, default=3, help="of all ways, in turn")
    parser.add_argument(
        "--max-others",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="take a turn again if other processes had more of the processor, 0 to 1 (default: never)",
    )
    parser.add_argument(
        "--num-pages",
        type=int,
        help="cache pages of each of the two engines, all used before the first figure (default: as the streams need)",
    )
    parser.add_argument("--websocket", action="store_true", help="measure /v1/stream too")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    options.num_pages = options.num_pages or pages_of(options)
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    flags = {"num_pages": options.num_pages, "model": options.model}
    settings = ServerSettings.from_sources(flags, os.environ)
    server_arguments = ["--num-pages", str(options.num_pages), "--model", settings.model]
    with started_server(server_arguments) as url:
        # Only now: the server is idle, so the two do not compile side by side.
        engine = load_engine(settings)
        ways = all_ways(engine, url, websocket=options.websocket)
        comparisons = compare_all(ways, served_model(url), options)
    if options.json:
        figures = [comparison.to_dict() for comparison in comparisons]
        write_figures(options.json, PROGRAM, arguments, comparisons=figures)
    return 0


if __name__ == "__main__":
    run(PROGRAM, main)
