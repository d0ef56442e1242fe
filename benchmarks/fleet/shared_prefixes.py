"""A load whose prompts share prefixes in groups, by which routing policies are compared."""

import asyncio
import random
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import aiohttp

from benchmarks.serving.stream_client import StreamClient, new_session, stream_completion
from server.cli.bench.load.workload import WORDS


@dataclass(frozen=True, slots=True)
class PrefixLoad:
    """Each request has the beginning of one group, drawn at random, and an end of its own."""

    num_groups: int = 12
    num_shared_words: int = 400  # about one token each
    num_own_words: int = 16
    num_output_tokens: int = 16
    num_requests: int = 96
    num_clients: int = 8

    def bodies(self, seed: int) -> list[dict[str, Any]]:
        """The requests of one round; rounds with other seeds share no beginning."""
        draw = random.Random(seed)
        beginnings = [" ".join(draw.choices(WORDS, k=self.num_shared_words)) for _ in range(self.num_groups)]
        return [
            {
                "prompt": f"{draw.choice(beginnings)} {' '.join(draw.choices(WORDS, k=self.num_own_words))}",
                "max_tokens": self.num_output_tokens,
                "ignore_eos": True,
                "temperature": 0,
            }
            for _ in range(self.num_requests)
        ]


async def run_load(url: str, load: PrefixLoad, seed: int) -> dict[str, float]:
    """The figures of one round through a router; raises StreamLost if a stream was not whole."""
    bodies = iter(load.bodies(seed))

    async def client(session: aiohttp.ClientSession) -> list[StreamClient]:
        return [await stream_completion(session, url, body) for body in bodies]

    async with new_session() as session:
        began = time.perf_counter()
        by_client = await asyncio.gather(*(client(session) for _ in range(load.num_clients)))
        seconds = time.perf_counter() - began
    answers = [answer for own in by_client for answer in own]
    num_cached = sum(answer.num_cached_tokens for answer in answers)
    return {
        "cached tokens, %": 100 * num_cached / sum(answer.usage["prompt_tokens"] for answer in answers),
        "requests/s": len(answers) / seconds,
        "first text, ms": 1000 * median(answer.first_text for answer in answers if answer.first_text is not None),
    }
