"""Alternating measurements: contenders take turns under the same loads, in an order that changes every round.

A machine drifts by more in minutes than two contenders may differ. A turn that other processes disturb is taken again.
`alternate` does this for any contenders; `alternate_servers` for server processes, of which all but the measured one
are paused.
"""

import argparse
import contextlib
import random
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from benchmarks.serving.command import at_least_one, write_figures
from benchmarks.serving.loads import ServerLoad, figures_of, measure_in_subprocess, warm_up
from benchmarks.serving.resources import OtherLoad, ResidentMemory, time_of
from benchmarks.serving.server_process import ServerFailed, ServerProcess, served_model
from benchmarks.serving.table import Turn, print_table, rows_of
from server.cli.bench.load.report import Report

MAX_TRIES = 5  # of a turn that others disturb
FIRST_PROMPT = list(range(1000, 1008))  # token ids
FIRST_TOKEN_TIMEOUT = 600.0  # seconds


class Measured(NamedTuple):
    figures: dict[str, float]  # by name, in the order of the table
    report: Report | None = None  # of a load on a server


def alternate(
    load: str,
    contenders: Mapping[str, Callable[[int], Measured]],
    rounds: Iterable[int],
    *,
    seeds: random.Random | None = None,
    max_others: float = 1.0,
) -> list[Turn]:
    """Measures every contender once a round; all of a round get the same seed.

    A turn in which other processes had more of the processors than `max_others` is taken again, MAX_TRIES times at
    most; the quietest try counts.
    """
    seeds = seeds or random.Random(0)
    turns = []
    for number in rounds:
        first_seed = seeds.getrandbits(32)
        for name in list(contenders)[:: -1 if number % 2 else 1]:
            seed, tries = first_seed, list[Turn]()
            for _ in range(MAX_TRIES):
                noise = OtherLoad()
                figures, report = contenders[name](seed)
                tries.append(Turn(number, load, name, figures, noise.share(), report))
                print_progress(tries[-1])
                if (tries[-1].others or 0.0) <= max_others:
                    break
                seed = seeds.getrandbits(32)  # the server's prefix cache has the prompts of this one now
            turns.append(min(tries, key=lambda turn: turn.others or 0.0))
    return turns


class ServerUnderTest(NamedTuple):
    """A server that runs. One that was started here is paused between its measurements."""

    url: str
    model: str  # its name for clients
    process: ServerProcess | None = None
    at_start: Turn | None = None  # what its start took

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        if self.process is not None:
            self.process.resume()
        try:
            yield
        finally:
            if self.process is not None:
                self.process.pause()

    def measure(self, load: ServerLoad, seed: int) -> Measured:
        workload = load.of(self.url, self.model, seed)
        with self.running():
            measure_in_subprocess(warm_up(workload))
            before = self.processor_time()
            report = measure_in_subprocess(workload).report
            after = self.processor_time()
        figures = figures_of(report)
        shown = {name: figures[name] for name in load.figures if name in figures}
        if before is not None and after is not None:
            shown["processor s"] = after - before
        return Measured(shown, report)

    def processor_time(self) -> float | None:
        return None if self.process is None else time_of(self.process.pid)

    def end_of_round(self) -> Turn:
        assert self.at_start is not None
        if (peak := self.peak_memory()) is not None:
            self.at_start.figures["RSS MiB peak"] = peak
        print_progress(self.at_start)
        return self.at_start

    def peak_memory(self) -> float | None:
        """MiB."""
        memory = None if self.process is None else ResidentMemory.of(self.process.pid)
        return None if memory is None else memory.peak / 2**20


@contextlib.contextmanager
def started(server: ServerProcess, number: int = 0) -> Iterator[ServerUnderTest]:
    """Runs the server, which has computed one token and is paused, until the block ends; raises ServerFailed."""
    noise = OtherLoad()
    with server:
        ready_after = time.perf_counter() - server.started
        model = served_model(server.url)
        compute_one_token(server.url, model)
        figures = {"ready, s": ready_after, "cold start, s": time.perf_counter() - server.started}
        if (memory := ResidentMemory.of(server.pid)) is not None:
            figures["RSS MiB start"] = memory.now / 2**20
        server.pause()
        try:
            yield ServerUnderTest(
                server.url, model, server, Turn(number, "server", server.name, figures, noise.share())
            )
        finally:
            server.resume()  # or SIGTERM would not be delivered


def compute_one_token(url: str, model: str) -> None:
    """Raises ServerFailed where the server did not compute one token after exactly the tokens that it was given."""
    body = {"model": model, "prompt": FIRST_PROMPT, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        url + "/v1/completions", orjson.dumps(body), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=FIRST_TOKEN_TIMEOUT) as response:
        usage = orjson.loads(response.read())["usage"]
    if (usage["prompt_tokens"], usage["completion_tokens"]) != (len(FIRST_PROMPT), 1):
        raise ServerFailed(f"the server at {url} was asked for 1 token after {len(FIRST_PROMPT)}, and counts {usage}")


def alternate_servers(
    servers: Sequence[ServerProcess], loads: Sequence[ServerLoad], options: argparse.Namespace
) -> list[Turn]:
    """Starts all servers anew in every round and measures each load on each of them; raises ServerFailed or OSError.

    One start of each before the first round is not counted: it compiles, and reads the files into the machine's memory.
    """
    for server in servers:
        print(f"first start of {server.name}, not counted", file=sys.stderr, flush=True)
        with started(server):
            pass
    seeds, turns = random.Random(options.seed), list[Turn]()
    for number in range(options.rounds):
        with contextlib.ExitStack() as stack:
            order = servers[::-1] if number % 2 else servers
            running = {server.name: stack.enter_context(started(server, number)) for server in order}
            contenders = {server.name: running[server.name] for server in servers}
            turns += under_loads(contenders, loads, options, [number], seeds)
            turns += [under_test.end_of_round() for under_test in contenders.values()]
    return turns


def under_loads(
    servers: Mapping[str, ServerUnderTest],
    loads: Sequence[ServerLoad],
    options: argparse.Namespace,
    rounds: Iterable[int],
    seeds: random.Random,
) -> list[Turn]:
    def contender(server: ServerUnderTest, load: ServerLoad) -> Callable[[int], Measured]:
        return lambda seed: server.measure(load, seed)

    turns, rounds = list[Turn](), list(rounds)
    for load in loads:
        contenders = {name: contender(server, load) for name, server in servers.items()}
        turns += alternate(load.name, contenders, rounds, seeds=seeds, max_others=options.max_others)
    return turns


def print_progress(turn: Turn) -> None:
    """Prints a turn on standard error, and a line for each thing that went wrong in it."""
    shown = ", ".join(f"{name} {value:,.1f}" for name, value in turn.shown.items())
    lines = [f"round {turn.round + 1}, {turn.load}, {turn.contender}: {shown}"]
    if turn.report is not None:
        num_requests = turn.report.num_requests
        lines += [f"  failed ({turn.report.num_failed} of {num_requests}): {error}" for error in turn.report.errors]
        if turn.report.num_off_length:
            lines.append(f"  {turn.report.num_off_length} of {num_requests} ended with another length")
    print("\n".join(lines), file=sys.stderr, flush=True)


def add_alternation_flags(parser: argparse.ArgumentParser, rounds: int = 3) -> None:
    """Declares the flags that all alternating benchmarks have."""
    parser.add_argument("--rounds", type=at_least_one, default=rounds, metavar="N", help="in which all take turns")
    parser.add_argument(
        "--max-others", type=float, default=1.0, metavar="SHARE",
        help=f"take a turn again, {MAX_TRIES} times at most, if other processes had more of the processors, 0 to 1",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")


def finish(
    turns: Sequence[Turn],
    contenders: Sequence[str],
    options: argparse.Namespace,
    program: str,
    arguments: Sequence[str],
    *,
    ratios: Sequence[tuple[str, str]] | None = None,
    **more: Any,
) -> int:
    """Prints the table of all turns, with `ratios` of contenders' medians, and writes `--json`; the exit status."""
    if ratios is None:
        ratios = [(contenders[0], contenders[1])] if len(contenders) > 1 else []
    rows = rows_of(turns, contenders, ratios)
    print_table(rows, contenders)
    write_figures(options.json, program, arguments, **more, table=[row.to_dict() for row in rows], turns=turns)
    return 0 if all(turn.is_good for turn in turns) else 1
