"""Several models in one server: what they take from each other, and what a load does to the streams of another.

    python -m benchmarks.several --model smollm2-135m-instruct --beside gemma-3-270m
    python -m benchmarks.several --model smollm2-135m-instruct --beside ./llama-1b.gguf --only load

`together`: each model alone in a server of its own, and then both in one, with the same clients each; every answer must
be the same. `load`: the gaps between the tokens of streams of the first model, while the second is loaded and its
programs are compiled, beside the gaps after that. The clients run in a process of their own on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import shlex
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np
import orjson

from benchmarks.serving.command import run, write_figures
from benchmarks.serving.server_process import ServerFailed, get, started_server
from server.cli.bench.load.load import Load
from server.cli.bench.load.workload import Workload

PROGRAM = "benchmarks.several"
NAMES = ("first", "second")
POLL_S = 0.1  # between two looks at whether the second model is there
QUIET_S = 10.0  # of streams after the load, to compare with


@dataclass(frozen=True, slots=True)
class Answers:
    """What one model answered to a workload."""

    token_ids: list[list[int]]  # by request
    tokens_per_s: float  # of output, from the first request of all models to this model's last answer


class Gaps(NamedTuple):
    """Times between two deltas of a stream, in milliseconds."""

    num: int
    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Gaps:
        if not seconds:
            return cls(0, float("nan"), float("nan"), float("nan"))
        p50, p99, longest = np.percentile(seconds, (50, 99, 100)) * 1000
        return cls(len(seconds), float(p50), float(p99), float(longest))


class LoadGaps(NamedTuple):
    """Gaps of the first model's streams."""

    load_s: float  # from the readiness of the first model to that of the second
    during: Gaps
    after: Gaps


def ask_apart(workloads: Sequence[Workload]) -> list[Answers]:
    """Runs workloads at the same time, in a process of their own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_ask_all, workloads).result()


def _ask_all(workloads: Sequence[Workload]) -> list[Answers]:
    async def ask() -> list[Answers]:
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            return list(await asyncio.gather(*(_ask(session, workload) for workload in workloads)))

    return asyncio.run(ask())


async def _ask(session: aiohttp.ClientSession, workload: Workload) -> Answers:
    bodies = list(workload.bodies())
    answers: list[list[int]] = [[] for _ in bodies]
    numbers = iter(range(len(bodies)))  # one iterator for all clients: each body is sent once

    async def client() -> None:
        for number in numbers:
            body = orjson.dumps({**bodies[number], "return_token_ids": True})
            headers = {"Content-Type": "application/json"}
            async with session.post(workload.url + "/v1/completions", data=body, headers=headers) as response:
                answer = await response.json()
            answers[number] = answer["choices"][0]["token_ids"]

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(workload.concurrency)))
    return Answers(answers, sum(map(len, answers)) / (time.perf_counter() - began))


def gaps_apart(workload: Workload, second: str) -> LoadGaps:
    """Streams from the first model until some time after the second is there, in a process of their own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_gaps_beside_load, workload, second).result()


def _gaps_beside_load(workload: Workload, second: str) -> LoadGaps:
    began, loaded_at = time.perf_counter(), 0.0
    arrivals: list[list[float]] = []
    while not loaded_at or time.perf_counter() < loaded_at + QUIET_S:
        traces, loaded = asyncio.run(_stream_and_look(workload, second, is_loaded=bool(loaded_at)))
        arrivals += traces
        loaded_at = loaded_at or loaded
    during, after = split_gaps(arrivals, loaded_at)
    return LoadGaps(loaded_at - began, Gaps.of(during), Gaps.of(after))


async def _stream_and_look(workload: Workload, second: str, *, is_loaded: bool) -> tuple[list[list[float]], float]:
    """Runs the workload once; the arrivals of each stream, and when the second model was found to be there, or 0."""
    load = Load(workload)
    streaming = asyncio.ensure_future(load.run())
    loaded_at = 0.0
    while not streaming.done() and not is_loaded and not loaded_at:
        await asyncio.sleep(POLL_S)
        if await asyncio.to_thread(state_of, workload.url, second) == "ready":
            loaded_at = time.perf_counter()
    await streaming
    return [[arrival.time for arrival in trace.arrivals] for trace in load.traces], loaded_at


def split_gaps(arrivals: Sequence[Sequence[float]], at: float) -> tuple[list[float], list[float]]:
    """The gaps of all streams that ended before a moment, and those that began after it."""
    pairs = [(one, two) for times in arrivals for one, two in itertools.pairwise(times)]
    return [two - one for one, two in pairs if two <= at], [two - one for one, two in pairs if one >= at]


def state_of(url: str, model: str) -> str:
    """
    Raises:
        ServerFailed: the model cannot be loaded.
    """
    entry = orjson.loads(get(f"{url}/v1/models/{model}"))
    if entry["state"] == "failed":
        raise ServerFailed(f"the {model} model cannot be loaded: {entry['error']}")
    return str(entry["state"])


def wait_until_ready(url: str, model: str) -> None:
    while state_of(url, model) != "ready":
        time.sleep(POLL_S)


def measure_together(options: argparse.Namespace) -> dict[str, object]:
    """Prints the table and returns its figures; `num_different` counts the answers that are not the same."""
    workload = Workload(
        url="", model="", concurrency=options.concurrency, num_requests=2 * options.concurrency,
        num_prompt_tokens=options.prompt_tokens, num_output_tokens=options.output_tokens,
    )  # fmt: skip
    models = dict(zip(NAMES, (options.model, options.beside), strict=True))
    alone: dict[str, Answers] = {}
    for name, model in models.items():
        with started_server([*options.server_args, "--model", f"{name}={model}"]) as url:
            (alone[name],) = ask_apart([dataclasses.replace(workload, url=url, model=name)])
    flags = [part for name, model in models.items() for part in ("--model", f"{name}={model}")]
    with started_server([*options.server_args, *flags]) as url:
        wait_until_ready(url, NAMES[-1])
        together = ask_apart([dataclasses.replace(workload, url=url, model=name) for name in models])
    num_different = 0
    for (name, model), both in zip(models.items(), together, strict=True):
        pairs = zip(alone[name].token_ids, both.token_ids, strict=True)
        num_different += sum(one != other for one, other in pairs)
        print(
            f"{model}: {alone[name].tokens_per_s:.1f} tokens/s alone, {both.tokens_per_s:.1f} beside the other",
            flush=True,
        )
    total = sum(answers.tokens_per_s for answers in together)
    best = max(answers.tokens_per_s for answers in alone.values())
    num_answers = len(models) * workload.num_requests
    print(f"together {total:.1f} tokens/s; {num_different} of {num_answers} answers differ", flush=True)
    return {
        "alone": {name: answers.tokens_per_s for name, answers in alone.items()},
        "together": [answers.tokens_per_s for answers in together],
        "share_of_better": total / best,
        "num_different": num_different,
    }


def measure_load(options: argparse.Namespace) -> dict[str, object]:
    """Prints the gaps beside a load and after it, and returns them."""
    flags = ["--model", f"first={options.model}", "--model", f"second={options.beside}"]
    with started_server([*options.server_args, *flags]) as url:
        workload = Workload(
            url=url, model="first", concurrency=options.streams, num_requests=options.streams,
            num_prompt_tokens=32, num_output_tokens=256,
        )  # fmt: skip
        gaps = gaps_apart(workload, "second")
    print(
        f"the second model was there after {gaps.load_s:.1f} s; gaps of {options.streams} streams of the first in ms:"
    )
    for name, spread in (("during the load", gaps.during), ("after it", gaps.after)):
        figures = f"p50 {spread.p50:.1f}, p99 {spread.p99:.1f}, longest {spread.longest:.1f}"
        print(f"  {name}: {figures} ({spread.num} gaps)", flush=True)
    return {"gaps": gaps._asdict()}


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="the first model")
    parser.add_argument("--beside", required=True, help="the second model")
    parser.add_argument("--only", choices=("together", "load"), help="one of the two measurements")
    parser.add_argument("--concurrency", type=int, default=16, help="clients of each model")
    parser.add_argument("--streams", type=int, default=4, help="streams beside the load")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--server-args", type=shlex.split, default=[], help="further arguments, as one string")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    figures: dict[str, object] = {}
    if options.only != "load":
        figures |= measure_together(options)
    if options.only != "together":
        figures |= measure_load(options)
    if options.json:
        write_figures(options.json, PROGRAM, arguments, **figures)
    return 1 if figures.get("num_different") else 0


if __name__ == "__main__":
    run(PROGRAM, main)
