"""Measures how much of the device's speed reaches the clients, and what overlapping host and device gains.

    python -m benchmarks.overlap                               # 1, 16 and 64 streams
    python -m benchmarks.overlap --streams 16 --rounds 5 --websocket

One engine decodes the same prompts in several ways, alternating:

    bare          its compiled steps alone, one after the other: the most that the device can give
    synchronous   its loop that waits for each step, read by its client in the same process
    overlapped    its loop that dispatches the next step before it waits, read in the same way
    SSE           a server with such an engine and overlap, and clients, each in a process of its own

The rates are tokens per second while every stream flows: prefill, start and end are left out.
On a CPU everything but the bare loop also takes processor time from the device, most of all the clients, whose share
of the processors is shown: the last lines compare a way with what of the bare rate the clients leave.

Both engines have written to all of their pages before the first figure. The system gives a page its memory when it is
used for the first time, and takes processor time for that: from the server while its streams grow, but from the bare
loop, which knows all of its steps beforehand, before its clock starts.
"""

import argparse
import dataclasses
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax

from benchmarks.microbenchmarks.decoding import run_steps, run_streams
from benchmarks.serving.alternation import Measured, add_alternation_flags, alternate, finish
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.engines import load_engine
from benchmarks.serving.loads import measure_full_rate
from benchmarks.serving.server_process import served_model, started_server
from benchmarks.serving.table import Turn, rows_of
from cache.storage import PAGE_SIZE_BY_BACKEND
from engine.engine import Engine
from server.cli.bench.load.workload import Route, Workload
from server.startup.settings import ServerSettings

PROGRAM = "benchmarks.overlap"
NUM_PROMPT_TOKENS = 32
PAGE_SIZE = PAGE_SIZE_BY_BACKEND[jax.default_backend()]  # tokens
# Both engines have pages for so many at least, as the default model has: their number limits the length of a request,
# and that the width of the page tables that each step reads.
NUM_CONTEXT_TOKENS = 8192
NUM_FILLING_STREAMS = 16
RATE, CLIENTS = "full tok/s", "clients, %"


class Rate(NamedTuple):
    tokens_per_s: float
    clients: float = 0.0  # share of the processors that clients in a process of their own had, 0 to 1


Way = Callable[[Workload], Rate]  # decodes the workload's prompts


def all_ways(engine: Engine, url: str, *, websocket: bool) -> dict[str, Way]:
    """The ways in the order of their turns; each leaves its engine idle, since they share a processor."""

    def in_process(load: Workload, *, overlap: bool) -> Rate:
        prompts = list(load.token_prompts())
        return Rate(run_streams(engine, prompts, load.num_output_tokens, overlap=overlap).tokens_per_s)

    ways: dict[str, Way] = {
        "bare": lambda load: Rate(run_steps(engine, list(load.token_prompts()), load.num_output_tokens).tokens_per_s),
        "synchronous": lambda load: in_process(load, overlap=False),
        "overlapped": lambda load: in_process(load, overlap=True),
        "SSE": lambda load: over_network(url, load, "completions"),
    }
    if websocket:
        ways["WebSocket"] = lambda load: over_network(url, load, "websocket")
    return ways


def over_network(url: str, load: Workload, route: Route) -> Rate:
    rate, measurement = measure_full_rate(dataclasses.replace(load, url=url, route=route))
    return Rate(rate, measurement.clients)


def ratios(ways: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(way, "bare") for way in ("SSE", "WebSocket") if way in ways] + [("overlapped", "synchronous")]


def pages_of(options: argparse.Namespace) -> int:
    """The cache pages that the largest number of streams needs, and the null page."""
    num_needed = max(options.streams) * pages_each(options.output_len)
    return int(max(num_needed, NUM_CONTEXT_TOKENS // PAGE_SIZE) + 1)


def pages_each(output_len: int) -> int:
    """The cache pages of one stream, with the one that admission keeps in reserve for it."""
    return -(-(NUM_PROMPT_TOKENS + output_len) // PAGE_SIZE) + 1


def use_all_pages(ways: Mapping[str, Way], loads: Sequence[Workload], num_pages: int) -> None:
    """Has both engines compute streams about as long as those of the loads until all of their pages have been used.

    Only full pages of known tokens count: others go back to the front of the free queue. One page is the null page.
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


def compare(ways: Mapping[str, Way], model: str, options: argparse.Namespace) -> list[Turn]:
    def contender(decode: Way, load: Workload) -> Callable[[int], Measured]:
        def measure(seed: int) -> Measured:
            rate = decode(dataclasses.replace(load, seed=seed))
            clients = {CLIENTS: 100 * rate.clients} if rate.clients else {}
            return Measured({RATE: rate.tokens_per_s, **clients})

        return measure

    load = Workload(
        url="", model=model, num_requests=1, num_prompt_tokens=NUM_PROMPT_TOKENS, num_output_tokens=8, seed=options.seed
    )
    for decode in ways.values():
        decode(load)  # a warm-up
    loads = [
        dataclasses.replace(load, concurrency=number, num_requests=number, num_output_tokens=options.output_len)
        for number in options.streams
    ]
    use_all_pages(ways, loads, options.num_pages)
    seeds, turns = random.Random(options.seed), list[Turn]()
    for load in loads:
        contenders = {way: contender(decode, load) for way, decode in ways.items()}
        rounds, name = range(options.rounds), f"{load.concurrency} streams"
        turns += alternate(name, contenders, rounds, seeds=seeds, max_others=options.max_others)
    return turns


def without_clients(turns: Sequence[Turn], ways: Mapping[str, object]) -> dict[str, dict[str, float]]:
    """By load and way over a network: its rate to the bare one, were the processors smaller by its clients' share."""
    rows = {(row.load, row.figure): row for row in rows_of(turns, list(ways))}
    found: dict[str, dict[str, float]] = {}
    for load in dict.fromkeys(turn.load for turn in turns):
        for way, reference in ratios(ways)[:-1]:
            ratio = rows[load, RATE].ratio(way, reference)
            clients = rows[load, CLIENTS].median(way) if (load, CLIENTS) in rows else None
            if ratio is not None:
                found.setdefault(load, {})[way] = ratio / (1 - (clients or 0.0) / 100)
    return found


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--model", help="a name or a path to a GGUF file")
    parser.add_argument("--streams", type=at_least_one, nargs="+", default=[1, 16, 64], metavar="N")
    parser.add_argument("--output-len", type=at_least_one, default=128, help="tokens of each stream")
    parser.add_argument(
        "--num-pages", type=int,
        help="cache pages of each of the two engines, all used before the first figure (default: as the streams need)",
    )  # fmt: skip
    parser.add_argument("--websocket", action="store_true", help="measure /v1/stream too")
    add_alternation_flags(parser)
    parser.add_argument("--repeats", type=at_least_one, dest="rounds", help="the same as --rounds")
    options = parser.parse_args(arguments)
    options.num_pages = options.num_pages or pages_of(options)
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    flags = {"num_pages": options.num_pages, "model": options.model}
    settings = ServerSettings.from_sources(flags, os.environ)
    with started_server(["--num-pages", str(options.num_pages), "--model", settings.model]) as url:
        # Only now: the server is idle, so the two do not compile side by side.
        engine = load_engine(settings.model, settings.engine_config())
        ways = all_ways(engine, url, websocket=options.websocket)
        turns = compare(ways, served_model(url), options)
    corrected = without_clients(turns, ways)
    status = finish(
        turns, list(ways), options, PROGRAM, arguments, ratios=ratios(ways), ratios_without_clients=corrected
    )
    for load, by_way in corrected.items():
        for way, ratio in by_way.items():
            print(f"{load}: {way}/bare {ratio:.3f} of what the clients leave of the processors")
    return status


if __name__ == "__main__":
    run(PROGRAM, main)
