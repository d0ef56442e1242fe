"""What it costs a server's streams that somebody watches its engine.

    python -m benchmarks.page.watched                            # 32 streams, 12 pairs of turns
    python -m benchmarks.page.watched --pairs 20 --page          # and a browser that draws the engine, on this machine

The same streams run in turns: alone, with a reader of `/engine/events`, and with `--page` beside the tab of the engine
in Chromium, whose drawing takes processor time of its own from a model on the same machine. The order of the turns of
one pair changes from pair to pair, so that a drift of the machine hits all ways.

Exits with 1 where a reader costs more than 2 % of the tokens per second, by the mean over all pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from benchmarks.serving.command import run, write_figures
from benchmarks.serving.load import measure_apart
from benchmarks.serving.processor import Disturbance, time_of
from benchmarks.serving.server_process import (
    RunningServer,
    ServerFailed,
    eagre_command,
    free_port,
    running_server,
    served_model,
)
from server.cli.bench.load.workload import Workload
from tests.static.devtools import Browser, find_chromium

PROGRAM = "benchmarks.page.watched"
MOST_COST = 0.02
NUM_PROMPT_TOKENS = 32

Watch = Callable[[str], contextlib.AbstractContextManager[None]]  # watches the engine of the server at a URL


class Turn(NamedTuple):
    """The streams in one way."""

    way: str
    tokens_per_s: float  # while every stream flowed
    processor_us: float  # of the server for each token
    others: float | None  # share of the processor that other processes had meanwhile, 0 to 1


@contextlib.contextmanager
def nobody(_: str) -> Iterator[None]:
    """Nobody watches."""
    yield


@contextlib.contextmanager
def a_reader(url: str) -> Iterator[None]:
    """A client reads the stream of the engine's events and does nothing with them."""
    num_bytes, is_over = 0, threading.Event()

    def read() -> None:
        nonlocal num_bytes
        with urllib.request.urlopen(url + "/engine/events", timeout=60) as response:
            while not is_over.is_set() and (data := response.read1(1 << 16)):  # an event comes five times a second
                num_bytes += len(data)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if num_bytes < 1000:
        raise ServerFailed("the engine's events did not come")


@contextlib.contextmanager
def the_page(url: str) -> Iterator[None]:
    """A browser shows the tab of the engine."""
    executable = find_chromium()
    if executable is None:
        raise ServerFailed("no Chromium is installed")
    with asyncio.Runner() as runner:
        browser = Browser(executable)
        runner.run(browser.start())

        async def show() -> None:
            page = await browser.open(url + "/")
            await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
            await page.click("#tab-engine")
            await page.wait_for("document.querySelector('#engine-steps').textContent !== '–'")

        try:
            runner.run(show())
            yield
        finally:
            runner.run(browser.close())


WAYS: dict[str, Watch] = {"alone": nobody, "reader": a_reader, "page": the_page}


def take(way: str, load: Workload, server: RunningServer) -> Turn:
    """
    Raises:
        ServerFailed: a request failed, or the streams never all flowed at once.
    """
    with WAYS[way](server.url):
        before, disturbance = time_of(server.pid) or 0.0, Disturbance()
        report = measure_apart(load)
        spent = (time_of(server.pid) or 0.0) - before
    if report.num_failed:
        raise ServerFailed(f"{report.num_failed} of {report.num_requests} requests failed: {report.errors}")
    if report.full_tokens_per_s is None:
        raise ServerFailed(f"the {load.concurrency} streams never all flowed at once; take a larger --output-len")
    return Turn(way, report.full_tokens_per_s, 1e6 * spent / report.num_output_tokens, disturbance.share())


def take_pairs(server: RunningServer, ways: Sequence[str], options: argparse.Namespace) -> list[dict[str, Turn]]:
    """The turns of all pairs, by way; prints each pair."""
    seeds = random.Random(options.seed)
    model = served_model(server.url)

    def load(num_output_tokens: int) -> Workload:
        return Workload(
            url=server.url, model=model, concurrency=options.streams, num_requests=options.streams,
            num_prompt_tokens=NUM_PROMPT_TOKENS, num_output_tokens=num_output_tokens, seed=seeds.getrandbits(32),
        )  # fmt: skip

    measure_apart(load(16))  # a warm-up
    pairs = []
    for number in range(options.pairs):
        order = ways[::-1] if number % 2 else ways
        # Prompts of their own for each turn: the server has those of earlier ones in its prefix cache.
        pair = {way: take(way, load(options.output_len), server) for way in order}
        pairs.append(pair)
        shown = [f"{way} {pair[way].tokens_per_s:,.1f} tokens/s ({_others(pair[way])})" for way in ways]
        ratios = [f"{way}/alone {pair[way].tokens_per_s / pair['alone'].tokens_per_s:.3f}" for way in ways[1:]]
        print(f"pair {number + 1}: {', '.join([*shown, *ratios])}", flush=True)
    return pairs


def _others(turn: Turn) -> str:
    return "others -" if turn.others is None else f"others {turn.others:.0%}"


def cost_of(way: str, pairs: Sequence[dict[str, Turn]]) -> float:
    """The share of the tokens per second that a way costs, by the mean over the pairs; prints it."""
    costs = [1 - pair[way].tokens_per_s / pair["alone"].tokens_per_s for pair in pairs]
    error = 2 * stdev(costs) / len(costs) ** 0.5 if len(costs) > 1 else float("nan")
    work = mean(pair[way].processor_us / pair["alone"].processor_us for pair in pairs) - 1
    print(
        f"{way}: costs {mean(costs):.2%} of the tokens per second (± {error:.2%}, two standard errors of {len(costs)} "
        f"pairs), and {work:+.2%} of the server's processor time for each token"
    )
    return mean(costs)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a name or a path")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=256, help="tokens of each stream")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--page", action="store_true", help="measure a browser on this machine too")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    ways = ["alone", "reader", *(["page"] if options.page else [])]
    port = free_port()
    command = eagre_command(port, ["--model", options.model] if options.model else [])
    with running_server(command, f"http://127.0.0.1:{port}") as server:
        pairs = take_pairs(server, ways, options)
    costs = {way: cost_of(way, pairs) for way in ways[1:]}
    if options.json:
        figures = [{way: turn._asdict() for way, turn in pair.items()} for pair in pairs]
        write_figures(options.json, PROGRAM, arguments, pairs=figures, costs=costs)
    return 0 if costs["reader"] <= MOST_COST else 1


if __name__ == "__main__":
    run(PROGRAM, main)
