"""Measures the gaps of running streams during a burst of long prompts, and the prompts' first tokens, by target gap.

    python -m benchmarks.gap
    python -m benchmarks.gap --targets 0 50 --streams 16 --prompts 16 --prompt-tokens 1024 --rounds 3

The real model, in this process, without a server. Targets alternate, so that their ratios hold on a machine that
drifts; 0 is throughput. Prompts are random, so that none is in the prefix cache. The figures are of the time from the
arrival of the prompts to the last of their first tokens; tok/s counts prompts and streams together.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import mean, median

import numpy as np

from benchmarks.serving.alternation import Measured, add_alternation_flags, alternate, finish
from benchmarks.serving.command import at_least_one, new_parser, run
from benchmarks.serving.engines import COMPILED, load_engine, running_client
from benchmarks.serving.table import Turn
from engine.client import EngineClient, TokenStream
from engine.engine import Engine
from engine.interface.config import EngineConfig
from sampling.host.params import SamplingParams
from server.cli.memory import freeze_gc
from server.startup.settings import DEFAULT_MODEL

PROGRAM = "benchmarks.gap"
STREAM_PROMPT_TOKENS = 32
SETTLING_TOKENS = 8  # of each stream before the prompts come


async def burst(client: EngineClient, options: argparse.Namespace, draw: random.Random) -> dict[str, float]:
    """Starts the streams, and sends the prompts when all of them run."""
    vocab_size = client.model_info.vocab_size

    def stream(num_prompt_tokens: int, num_tokens: int) -> TokenStream:
        prompt = draw.choices(range(vocab_size), k=num_prompt_tokens)
        return client.submit(prompt, SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True))

    times: list[list[float]] = [[] for _ in range(options.streams)]
    all_run = asyncio.Event()

    async def read(source: TokenStream, arrivals: list[float]) -> None:
        async for event in source:
            arrivals.extend([time.perf_counter()] * len(event.token_ids))
            if all(len(each) >= SETTLING_TOKENS for each in times):
                all_run.set()

    longest = client.model_info.max_model_len - STREAM_PROMPT_TOKENS - 1
    streams = [stream(STREAM_PROMPT_TOKENS, min(4000, longest)) for _ in range(options.streams)]
    readers = [asyncio.create_task(read(*pair)) for pair in zip(streams, times, strict=True)]
    await all_run.wait()
    num_steps = client.stats().num_steps
    began = time.perf_counter()

    async def first_token(source: TokenStream) -> float:
        await anext(source)
        return 1000 * (time.perf_counter() - began)

    waits = await asyncio.gather(*(first_token(stream(options.prompt_tokens, 1)) for _ in range(options.prompts)))
    ended = time.perf_counter()
    for source in streams:
        source.abort()
    await asyncio.gather(*readers)
    marks = [[mark for mark in arrivals if began <= mark <= ended] for arrivals in times]
    gaps = [1000 * (after - before) for arrivals in marks for before, after in pairwise(arrivals)]
    num_tokens = options.prompts * options.prompt_tokens + sum(map(len, marks))
    stats = client.stats()
    return {
        "gap p50": float(np.median(gaps)), "gap p99": float(np.percentile(gaps, 99)), "gap max": max(gaps),
        "first token mean": mean(waits), "first token p50": median(waits), "first token max": max(waits),
        "steps": stats.num_steps - num_steps, "tok/s": num_tokens / (ended - began),
        "prediction error, %": 100 * stats.step_time_error,
    }  # fmt: skip


def name_of(target: float) -> str:
    return f"{target:g} ms"


def measure(engine: Engine, options: argparse.Namespace) -> list[Turn]:
    """The bursts of all rounds; one before them, in which the engine learns what steps cost, is left out."""
    client = EngineClient(engine)
    with running_client(client) as runner:

        def contender(target: float) -> Callable[[int], Measured]:
            def measured(seed: int) -> Measured:
                engine.scheduler.step_time.target_gap = target
                return Measured(runner.run(burst(client, options, random.Random(f"{seed} {target}"))))

            return measured

        contenders = {name_of(target): contender(target) for target in options.targets}
        seeds = random.Random(options.seed)
        turns = alternate("burst", contenders, range(options.rounds + 1), seeds=seeds, max_others=options.max_others)
    return [turn for turn in turns if turn.round]


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a name or a path to a GGUF file")
    parser.add_argument("--targets", type=float, nargs="+", default=[0.0, EngineConfig.target_gap], metavar="MS")
    parser.add_argument("--streams", type=at_least_one, default=16)
    parser.add_argument("--prompts", type=at_least_one, default=16)
    parser.add_argument("--prompt-tokens", type=at_least_one, default=1024)
    add_alternation_flags(parser)
    options = parser.parse_args(arguments)
    engine = load_engine(options.model, EngineConfig(compilation_cache=COMPILED, seed=0))
    freeze_gc()  # as `eagre serve` does
    return finish(
        measure(engine, options), [name_of(target) for target in options.targets], options, PROGRAM, arguments
    )


if __name__ == "__main__":
    run(PROGRAM, main)
