"""Time to first token of a long prompt whose beginning is in the prefix cache, beside that of a cold one.

    python -m benchmarks.prefix
    python -m benchmarks.prefix --rounds 15 --prompt-tokens 512 --cached-tokens 480

The real model, in this process, one request at a time. Cold prompts are random throughout; warm ones
begin with tokens that are in the cache and end with random ones of their own. They take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from engine.client import EngineClient
from engine.interface.config import EngineConfig
from engine.interface.types import FinishReason
from sampling.host.params import SamplingParams
from server.model_sources.cache_folder import cache_folder
from server.model_sources.model_store import ensure_model
from server.startup.progress import ProgressReporter
from server.startup.settings import DEFAULT_MODEL


class FirstToken(NamedTuple):
    seconds: float  # from submit until its reader had it
    num_cached_tokens: int  # of the prompt


class Pair(NamedTuple):
    cold: FirstToken
    warm: FirstToken

    @property
    def ratio(self) -> float:
        return self.warm.seconds / self.cold.seconds


async def first_token(client: EngineClient, prompt: Sequence[int]) -> FirstToken:
    """Runs a prompt until its first token.

    Raises:
        RuntimeError: it ended otherwise.
    """
    start = time.perf_counter()
    event = await anext(client.submit(prompt, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)))
    seconds = time.perf_counter() - start
    if event.finish_reason is not FinishReason.LENGTH:
        raise RuntimeError(f"the request ended with {event.finish_reason}: {event.error}")
    return FirstToken(seconds, event.num_cached_tokens)


async def measure(
    client: EngineClient, num_prompt_tokens: int, num_cached_tokens: int, num_rounds: int, seed: int
) -> list[Pair]:
    """Cold and warm prompts in turn.

    Raises:
        RuntimeError: a cold prompt was found in the cache, or a warm one was not.
    """
    draw = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return draw.choices(range(client.model_info.vocab_size), k=count)

    client.start(asyncio.get_running_loop())
    try:
        prefix = tokens(num_cached_tokens)
        await first_token(client, [*prefix, *tokens(num_prompt_tokens - num_cached_tokens)])  # fills the cache
        pairs = []
        for _ in range(num_rounds):
            cold = await first_token(client, tokens(num_prompt_tokens))
            warm = await first_token(client, [*prefix, *tokens(num_prompt_tokens - num_cached_tokens)])
            if cold.num_cached_tokens or not warm.num_cached_tokens:
                raise RuntimeError(
                    f"{cold.num_cached_tokens} cold and {warm.num_cached_tokens} warm tokens were cached"
                )
            pairs.append(Pair(cold, warm))
    finally:
        client.shutdown()
    return pairs


def print_pairs(pairs: Sequence[Pair]) -> None:
    for name, times in (("cold", [pair.cold for pair in pairs]), ("warm", [pair.warm for pair in pairs])):
        seconds = [time.seconds for time in times]
        print(
            f"{name}: {times[0].num_cached_tokens:5} tokens cached, time to first token "
            f"{1000 * median(seconds):,.1f} ms ({1000 * min(seconds):,.1f} to {1000 * max(seconds):,.1f})"
        )
    print(f"warm / cold, median of {len(pairs)} pairs: {median(pair.ratio for pair in pairs):.1%}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prefix", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a name or a path to a GGUF file")
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--cached-tokens", type=int, default=960)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--max-num-batched-tokens", type=int, default=EngineConfig.max_num_batched_tokens)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if not 0 < options.cached_tokens < options.prompt_tokens:
        parser.error("--cached-tokens must be more than 0 and less than --prompt-tokens")
    config = EngineConfig(
        max_num_seqs=8,
        max_num_batched_tokens=options.max_num_batched_tokens,
        compilation_cache=str(cache_folder() / "compiled"),
    )
    with ProgressReporter() as progress:
        client = EngineClient.load(ensure_model(options.model, progress), config, progress)
    pairs = measure(client, options.prompt_tokens, options.cached_tokens, options.rounds, options.seed)
    print_pairs(asyncio.run(pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
