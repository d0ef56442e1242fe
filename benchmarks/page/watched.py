"""Measures what it costs a server's streams that its engine is watched.

    python -m benchmarks.page.watched                            # 32 streams, 12 rounds
    python -m benchmarks.page.watched --rounds 20 --page         # and a browser that draws the engine, on this machine

The same streams run alone, with a reader of `/engine/events`, and with `--page` the engine's tab in Chromium, whose
drawing takes processor time of its own from a model on the same machine. The ways alternate.

Exits with 1 where a reader costs more than 2 % of the tokens per second, by the mean over all rounds.
"""

import asyncio
import contextlib
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from statistics import mean, stdev

from benchmarks.serving.alternation import Measured, add_alternation_flags, alternate, finish
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.loads import measure_full_rate, measure_in_subprocess
from benchmarks.serving.resources import time_of
from benchmarks.serving.server_process import ServerFailed, ServerProcess, served_model
from benchmarks.serving.table import Turn
from server.cli.bench.load.workload import Workload
from tests.static.support.devtools import Browser, find_chromium

PROGRAM = "benchmarks.page.watched"
MOST_COST = 0.02
NUM_PROMPT_TOKENS = 32
RATE = "full tok/s"

Watch = Callable[[str], contextlib.AbstractContextManager[None]]  # watches the engine of the server at a URL


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


WAYS: dict[str, Watch] = {"alone": lambda _: contextlib.nullcontext(), "reader": a_reader, "page": the_page}


def measure(watch: Watch, server: ServerProcess, load: Workload) -> Measured:
    with watch(server.url):
        before = time_of(server.pid) or 0.0
        rate, measurement = measure_full_rate(load)
        spent = (time_of(server.pid) or 0.0) - before
    return Measured({RATE: rate, "us per token": 1e6 * spent / measurement.report.num_output_tokens})


def print_cost(way: str, turns: Sequence[Turn]) -> float:
    """The share of the tokens per second that a way costs, by the mean over the rounds."""
    rates = {(turn.round, turn.contender): turn.figures[RATE] for turn in turns}
    rounds = {turn.round for turn in turns}
    costs = [1 - rates[number, way] / rates[number, "alone"] for number in rounds]
    error = 2 * stdev(costs) / len(costs) ** 0.5 if len(costs) > 1 else float("nan")
    print(f"{way}: costs {mean(costs):.2%} of the tokens per second (± {error:.2%}, two standard errors)")
    return mean(costs)


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--model", help="a name or a path")
    parser.add_argument("--streams", type=at_least_one, default=32)
    parser.add_argument("--output-len", type=at_least_one, default=256, help="tokens of each stream")
    parser.add_argument("--page", action="store_true", help="measure a browser on this machine too")
    add_alternation_flags(parser, rounds=12)
    options = parser.parse_args(arguments)
    ways = ["alone", "reader", *(["page"] if options.page else [])]
    with ServerProcess.eagre(["--model", options.model] if options.model else []) as server:
        model = served_model(server.url)

        def contender(number: int, way: str) -> Callable[[int], Measured]:
            # Each way gets prompts of its own: the server has earlier ones in its prefix cache.
            return lambda seed: measure(WAYS[way], server, load(options.output_len, len(WAYS) * seed + number))

        def load(num_output_tokens: int, seed: int) -> Workload:
            return Workload(
                url=server.url, model=model, concurrency=options.streams, num_requests=options.streams,
                num_prompt_tokens=NUM_PROMPT_TOKENS, num_output_tokens=num_output_tokens, seed=seed,
            )  # fmt: skip

        measure_in_subprocess(load(16, options.seed))  # a warm-up
        contenders = {way: contender(number, way) for number, way in enumerate(ways)}
        turns = alternate("watched", contenders, range(options.rounds), max_others=options.max_others)
    ratios = [(way, "alone") for way in ways[1:]]
    status = finish(turns, ways, options, PROGRAM, arguments, ratios=ratios)
    costs = {way: print_cost(way, turns) for way in ways[1:]}
    return status if costs["reader"] <= MOST_COST else 1


if __name__ == "__main__":
    run(PROGRAM, main)
