"""A load whose prompts begin alike in groups, and what a routing policy makes of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import aiohttp

from benchmarks.fleet.streams import Answer, ask
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


class Outcome(NamedTuple):
    hit_rate: float  # cached tokens of the prompts' tokens
    requests_per_s: float
    first_text: float  # median, in seconds

    @classmethod
    def of(cls, answers: Sequence[Answer], seconds: float) -> Outcome:
        num_prompt_tokens = sum(answer.usage["prompt_tokens"] for answer in answers)
        num_cached = sum(answer.num_cached_tokens for answer in answers)
        first = median(answer.first_text for answer in answers if answer.first_text is not None)
        return cls(num_cached / num_prompt_tokens, len(answers) / seconds, first)


async def run_load(front: str, load: PrefixLoad, seed: int) -> Outcome:
    """One round through a router.

    Raises:
        StreamLost: a stream was not whole.
    """
    bodies = iter(load.bodies(seed))

    async def client(session: aiohttp.ClientSession) -> list[Answer]:
        return [await ask(session, front, body) for body in bodies]

    timeout = aiohttp.ClientTimeout(total=None, sock_read=300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()
        answers = await asyncio.gather(*(client(session) for _ in range(load.num_clients)))
        return Outcome.of([answer for own in answers for answer in own], time.perf_counter() - began)
