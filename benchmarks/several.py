"""Measures two models in one server: what they take from each other, and what loading one does to the other's streams.

    python -m benchmarks.several --model smollm2-135m-instruct --beside gemma-3-270m
    python -m benchmarks.several --model smollm2-135m-instruct --beside ./llama-1b.gguf --only load

`together`: each model alone in a server of its own, and then both in one, with the same clients each; every answer must
be the same. `load`: the gaps between the tokens of streams of the first model, while the second is loaded and its
programs are compiled, and after that. The clients run in this process, the server in another one.
"""

import argparse
import asyncio
import dataclasses
import itertools
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
import orjson

from benchmarks.serving.command import new_parser, run, write_figures
from benchmarks.serving.server_process import ServerFailed, get, started_server
from server.cli.bench.load.load import Load
from server.cli.bench.load.report import Spread
from server.cli.bench.load.workload import Workload

PROGRAM = "benchmarks.several"
NAMES = ("first", "second")
POLL_S = 0.1  # between two looks at whether the second model is ready
QUIET_S = 10.0  # of streams after the load, to compare with


class Answers(NamedTuple):
    token_ids: list[list[int]]  # by request
    tokens_per_s: float  # of output, from the first request of all models to this model's last answer


def ask_all(workloads: Sequence[Workload]) -> list[Answers]:
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
            body = {**bodies[number], "return_token_ids": True}
            async with session.post(workload.url + "/v1/completions", json=body) as response:
                answers[number] = (await response.json())["choices"][0]["token_ids"]

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(workload.concurrency)))
    return Answers(answers, sum(map(len, answers)) / (time.perf_counter() - began))


async def stream_until_loaded(workload: Workload, second: str) -> tuple[list[list[float]], float]:
    """Streams from the first model until QUIET_S after the second is ready; returns times of tokens and readiness."""
    arrivals, loaded_at = list[list[float]](), 0.0
    while not loaded_at or time.perf_counter() < loaded_at + QUIET_S:
        load = Load(workload)
        streaming = asyncio.ensure_future(load.run())
        while not streaming.done() and not loaded_at:
            await asyncio.sleep(POLL_S)
            if await asyncio.to_thread(state_of, workload.url, second) == "ready":
                loaded_at = time.perf_counter()
        await streaming
        arrivals += [[arrival.time for arrival in trace.arrivals] for trace in load.traces]
    return arrivals, loaded_at


def split_gaps(arrivals: Sequence[Sequence[float]], at: float) -> tuple[list[float], list[float]]:
    """The gaps of all streams that ended before a moment, and those that began after it."""
    pairs = [(one, two) for times in arrivals for one, two in itertools.pairwise(times)]
    return [two - one for one, two in pairs if two <= at], [two - one for one, two in pairs if one >= at]


def state_of(url: str, model: str) -> str:
    entry = orjson.loads(get(f"{url}/v1/models/{model}"))
    if entry["state"] == "failed":
        raise ServerFailed(f"the {model} model cannot be loaded: {entry['error']}")
    return str(entry["state"])


def measure_together(options: argparse.Namespace) -> dict[str, object]:
    """Prints the rates and returns the figures; `num_different` counts the answers that are not the same."""
    workload = Workload(
        url="", model="", concurrency=options.concurrency, num_requests=2 * options.concurrency,
        num_prompt_tokens=options.prompt_tokens, num_output_tokens=options.output_tokens,
    )  # fmt: skip
    models = dict(zip(NAMES, (options.model, options.beside), strict=True))
    alone: dict[str, Answers] = {}
    for name, model in models.items():
        with started_server([*options.server_args, "--model", f"{name}={model}"]) as url:
            (alone[name],) = ask_all([dataclasses.replace(workload, url=url, model=name)])
    with started_server([*options.server_args, *_model_flags(options)]) as url:
        while state_of(url, NAMES[-1]) != "ready":
            time.sleep(POLL_S)
        together = ask_all([dataclasses.replace(workload, url=url, model=name) for name in models])
    num_different = 0
    for (name, model), both in zip(models.items(), together, strict=True):
        pairs = zip(alone[name].token_ids, both.token_ids, strict=True)
        num_different += sum(one != other for one, other in pairs)
        print(f"{model}: {alone[name].tokens_per_s:.1f} tokens/s alone, {both.tokens_per_s:.1f} beside the other")
    total = sum(answers.tokens_per_s for answers in together)
    num_answers = len(models) * workload.num_requests
    print(f"together {total:.1f} tokens/s; {num_different} of {num_answers} answers differ", flush=True)
    return {
        "alone": {name: answers.tokens_per_s for name, answers in alone.items()},
        "together": [answers.tokens_per_s for answers in together],
        "share_of_better": total / max(answers.tokens_per_s for answers in alone.values()),
        "num_different": num_different,
    }


def measure_load(options: argparse.Namespace) -> dict[str, object]:
    """Prints the gaps during a load and after it, and returns them."""
    with started_server([*options.server_args, *_model_flags(options)]) as url:
        workload = Workload(
            url=url, model="first", concurrency=options.streams, num_requests=options.streams,
            num_prompt_tokens=32, num_output_tokens=256,
        )  # fmt: skip
        began = time.perf_counter()
        arrivals, loaded_at = asyncio.run(stream_until_loaded(workload, "second"))
    print(f"the second model was ready after {loaded_at - began:.1f} s; gaps of {options.streams} streams in ms:")
    figures: dict[str, object] = {"load_s": loaded_at - began}
    for name, gaps in zip(("during the load", "after it"), split_gaps(arrivals, loaded_at), strict=True):
        figures[name] = spread = Spread.of(gaps)
        shown = "none" if spread is None else f"p50 {spread.p50:.1f}, p99 {spread.p99:.1f}, longest {spread.max:.1f}"
        print(f"  {name}: {shown} ({len(gaps)} gaps)", flush=True)
    return {"gaps": figures}


def _model_flags(options: argparse.Namespace) -> list[str]:
    return ["--model", f"first={options.model}", "--model", f"second={options.beside}"]


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--model", required=True, help="the first model")
    parser.add_argument("--beside", required=True, help="the second model")
    parser.add_argument("--only", choices=("together", "load"), help="one of the two measurements")
    parser.add_argument("--concurrency", type=int, default=16, help="clients of each model")
    parser.add_argument("--streams", type=int, default=4, help="streams beside the load")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--server-args", type=shlex.split, default=[], help="further arguments, as one string")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    figures: dict[str, object] = {}
    if options.only != "load":
        figures |= measure_together(options)
    if options.only != "together":
        figures |= measure_load(options)
    write_figures(options.json, PROGRAM, arguments, **figures)
    return 1 if figures.get("num_different") else 0


if __name__ == "__main__":
    run(PROGRAM, main)
