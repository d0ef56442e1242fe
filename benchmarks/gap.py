"""Running streams beside a burst of long prompts: their gaps and the prompts' first tokens, for each target of the gap.

    python -m benchmarks.gap
    python -m benchmarks.gap --targets 0 50 --streams 16 --prompts 16 --prompt-tokens 1024 --rounds 3

The real model, in this process, without a server. Targets take turns, so that their ratios hold on a machine that
drifts; 0 is throughput. Prompts are random, so that none is in the prefix cache.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from engine.client import EngineClient, TokenStream
from engine.engine import Engine
from engine.interface.config import EngineConfig
from sampling.host.params import SamplingParams
from server.cli.collector import calm_collector
from server.model_sources.cache_folder import cache_folder
from server.model_sources.model_store import ensure_model
from server.startup.progress import ProgressReporter
from server.startup.settings import DEFAULT_MODEL

STREAM_PROMPT_TOKENS = 32
SETTLING_TOKENS = 8  # of each stream before the prompts come


class Burst(NamedTuple):
    """Of one round; all times in milliseconds."""

    gaps: list[float]  # of the streams, from the arrival of the prompts to the last of their first tokens
    first_tokens: list[float]
    num_steps: int
    tokens_per_second: float  # of prompts and streams together
    step_time_error: float


async def burst(client: EngineClient, options: argparse.Namespace, draw: random.Random) -> Burst:
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
    return Burst(gaps, waits, stats.num_steps - num_steps, num_tokens / (ended - began), stats.step_time_error)


def print_burst(target: float, result: Burst) -> None:
    gaps, waits = np.array(result.gaps), np.array(result.first_tokens)
    print(
        f"target {target:5g} ms: gap p50 {np.median(gaps):6.1f}  p99 {np.percentile(gaps, 99):6.1f}  "
        f"max {gaps.max():6.1f} ms; first token mean {waits.mean():8,.0f}  p50 {np.median(waits):8,.0f}  "
        f"max {waits.max():8,.0f} ms; {result.num_steps} steps, {result.tokens_per_second:,.0f} tokens/s, "
        f"predictions off by {result.step_time_error:.0%}",
        flush=True,
    )


async def measure(engine: Engine, options: argparse.Namespace) -> None:
    client, draw = EngineClient(engine), random.Random(options.seed)
    client.start(asyncio.get_running_loop())
    try:
        for number in range(options.rounds + 1):
            for target in options.targets:
                engine.scheduler.step_time.target_gap = target
                result = await burst(client, options, draw)
                if number:  # the first round is for the costs to be learned
                    print_burst(target, result)
    finally:
        client.shutdown()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gap", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a name or a path to a GGUF file")
    parser.add_argument("--targets", type=float, nargs="+", default=[0.0, EngineConfig.target_gap], metavar="MS")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    config = EngineConfig(compilation_cache=str(cache_folder() / "compiled"), seed=0)
    with ProgressReporter() as progress:
        engine = Engine.load(ensure_model(options.model, progress), config, progress)
    calm_collector()  # as `eagre serve` does
    asyncio.run(measure(engine, options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
