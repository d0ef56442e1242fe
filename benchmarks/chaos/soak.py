"""The soak round: thousands of random requests, a third of them aborted, leave nothing behind in an engine.

Prompts share prefixes, priorities differ, prompts come several times at once, and aborts come at any time, on a
simulated device with few pages. It fails where pages or requests are left, memory grows, or the engine took more steps
than the requests' tokens can explain.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.chaos.ledger import print_rows
from benchmarks.microbenchmarks.simulated_device import VOCAB_SIZE, SimulatedEngine
from benchmarks.serving.resources import ResidentMemory
from engine.client import EngineClient, TokenStream
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.interface.types import EngineStats, FinishReason
from sampling.host.params import SamplingParams

STEP_SECONDS = 0.0002
PAGE_SIZE = 16  # tokens
NUM_PAGES = 48  # a running request needs up to 18, and NUM_SLOTS could run
NUM_SLOTS = 16
NUM_CLIENTS = 48  # each has one prompt at a time
NUM_PREFIXES = 12
MAX_PREFIX_TOKENS = 128
MAX_TAIL_TOKENS = 64
MAX_OUTPUT_TOKENS = 96
MAX_COPIES = 3
ABORTED_SHARE = 1 / 3
MAX_RSS_GROWTH = 16 << 20  # bytes; the allocator's own unrest
MAX_OBJECT_GROWTH = 0.02  # of the objects that the collector knows


class Memory(NamedTuple):
    """Of this process while no request runs."""

    rss: int  # bytes
    num_objects: int  # that the garbage collector tracks

    @classmethod
    def now(cls) -> Memory:
        gc.collect()
        resident = ResidentMemory.of(os.getpid())
        return cls(0 if resident is None else resident.now, len(gc.get_objects()))


@dataclass(slots=True)
class Tally:
    num_requests: int = 0
    num_aborts: int = 0  # requested; some come too late
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_row_steps: int = 0  # rows of steps that the requests need where nothing is computed twice
    endings: dict[FinishReason, int] = field(default_factory=dict)


class Soak:
    """Clients that draw random requests from one source."""

    def __init__(self, client: EngineClient, seed: int) -> None:
        self.tally = Tally()
        self._client = client
        self._draw = random.Random(seed)
        self._prefixes = [self._tokens(self._draw.randint(1, MAX_PREFIX_TOKENS)) for _ in range(NUM_PREFIXES)]
        self._num_left = 0

    async def run(self, num_requests: int, num_clients: int) -> None:
        self._num_left = num_requests
        await asyncio.gather(*[self._client_body() for _ in range(num_clients)])

    async def _client_body(self) -> None:
        draw = self._draw
        while self._num_left > 0:
            prompt = self._prompt()
            num_copies = min(draw.choice([1, 1, 1, draw.randint(1, MAX_COPIES)]), self._num_left)
            self._num_left -= num_copies
            priority = draw.randint(0, 2)
            await asyncio.gather(*[self._request(prompt, priority) for _ in range(num_copies)])

    def _prompt(self) -> list[int]:
        draw = self._draw
        if draw.random() < 0.2:
            return self._tokens(draw.randint(1, MAX_TAIL_TOKENS))
        prefix = draw.choice(self._prefixes)
        if draw.random() < 0.02:  # what is popular changes
            self._prefixes[draw.randrange(NUM_PREFIXES)] = self._tokens(draw.randint(1, MAX_PREFIX_TOKENS))
        return [*prefix, *self._tokens(draw.randint(0, MAX_TAIL_TOKENS))]

    def _tokens(self, count: int) -> list[int]:
        return self._draw.choices(range(VOCAB_SIZE), k=count)

    async def _request(self, prompt: list[int], priority: int) -> None:
        draw, tally = self._draw, self.tally
        params = SamplingParams(
            max_tokens=draw.randint(1, MAX_OUTPUT_TOKENS), temperature=draw.choice([0.0, 1.0]), ignore_eos=True
        )
        abort_after = draw.randint(0, params.max_tokens) if draw.random() < ABORTED_SHARE else None
        tally.num_requests += 1
        tally.num_aborts += abort_after is not None
        tally.num_row_steps += -(-len(prompt) // TILE_SIZE) + params.max_tokens
        stream = self._client.submit(prompt, params, priority=priority)
        if abort_after == 0:
            await asyncio.sleep(draw.choice([0.0, draw.random() * 0.02]))
            stream.abort()
        await self._read(stream, abort_after)

    async def _read(self, stream: TokenStream, abort_after: int | None) -> None:
        tally, num_tokens = self.tally, 0
        async for event in stream:
            num_tokens += len(event.token_ids)
            if event.finish_reason is not None:
                tally.endings[event.finish_reason] = tally.endings.get(event.finish_reason, 0) + 1
                tally.num_cached_tokens += event.num_cached_tokens
            elif abort_after is not None and num_tokens >= abort_after:
                stream.abort()
        tally.num_output_tokens += num_tokens


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was left when all requests had ended."""

    tally: Tally
    stats: EngineStats
    after_a_third: Memory
    at_the_end: Memory
    pool_error: str | None  # what the pool's own check found

    @property
    def max_steps(self) -> int:
        """The most steps that the requests explain: a row a tile of a prompt and output token, again if preempted."""
        longest = MAX_PREFIX_TOKENS + MAX_TAIL_TOKENS + MAX_OUTPUT_TOKENS
        return self.tally.num_row_steps + self.stats.num_preemptions * (-(-longest // TILE_SIZE) + 1)

    @property
    def failures(self) -> list[str]:
        stats, tally, before, after = self.stats, self.tally, self.after_a_third, self.at_the_end
        unfinished = tally.num_requests - sum(tally.endings.values())
        object_growth = after.num_objects / before.num_objects - 1
        checks = [
            (stats.num_active_pages == 0, f"{stats.num_active_pages} pages leaked"),
            (self.pool_error is None, f"the pool is not whole: {self.pool_error}"),
            (not stats.num_running + stats.num_waiting, f"{stats.num_running} run and {stats.num_waiting} wait"),
            (unfinished == 0, f"{unfinished} streams have not ended"),
            (FinishReason.ERROR not in tally.endings, f"{tally.endings.get(FinishReason.ERROR)} requests failed"),
            (after.rss - before.rss <= MAX_RSS_GROWTH, f"memory grew by {(after.rss - before.rss) >> 20} MiB"),
            (object_growth <= MAX_OBJECT_GROWTH, f"the number of live objects grew by {object_growth:.1%}"),
            (stats.num_steps <= self.max_steps, f"{stats.num_steps} steps; {self.max_steps} are explained"),
        ]
        return [sentence for is_good, sentence in checks if not is_good]


async def soak(
    num_requests: int, num_clients: int, *, overlap: bool, seed: int, step_seconds: float = STEP_SECONDS
) -> Outcome:
    config = EngineConfig(
        max_num_seqs=NUM_SLOTS,
        max_num_batched_tokens=2 * TILE_SIZE,
        max_model_len=512,
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        overlap=overlap,
        seed=seed,
    )
    engine = SimulatedEngine(config, step_seconds)
    client = EngineClient(engine)
    run = Soak(client, seed)
    client.start(asyncio.get_running_loop())
    try:
        await run.run(num_requests // 3, num_clients)
        after_a_third = Memory.now()
        await run.run(num_requests - num_requests // 3, num_clients)
        at_the_end = Memory.now()
    finally:
        client.shutdown()  # joins the engine's thread: from here on its state holds still
    pool_error = None
    try:
        engine.pool.check()
    except AssertionError as error:
        pool_error = str(error)
    return Outcome(run.tally, client.stats(), after_a_third, at_the_end, pool_error)


def run_round(options: argparse.Namespace) -> list[str]:
    """Prints what was left, and returns what failed."""
    outcome = asyncio.run(soak(options.requests, NUM_CLIENTS, overlap=True, seed=options.seed))
    stats, tally, before, after = outcome.stats, outcome.tally, outcome.after_a_third, outcome.at_the_end
    print_rows({
        "requests": f"{tally.num_requests:,}, of which {tally.num_aborts:,} were aborted",
        "ended with": ", ".join(f"{reason} {count:,}" for reason, count in sorted(tally.endings.items())),
        "output tokens": f"{tally.num_output_tokens:,}",
        "prompt tokens cached": f"{tally.num_cached_tokens:,}",
        "preemptions": f"{stats.num_preemptions:,}",
        "steps": f"{stats.num_steps:,} (bound: {outcome.max_steps:,})",
        "pages": f"{stats.num_active_pages} active, {stats.num_cached_pages} cached, {stats.num_free_pages} free",
        "live requests": f"{stats.num_running + stats.num_waiting}",
        "resident memory": f"{before.rss / 2**20:,.1f} MiB after a third, {after.rss / 2**20:,.1f} MiB at the end",
        "live objects": f"{before.num_objects:,} after a third, {after.num_objects:,} at the end",
    })  # fmt: skip
    return outcome.failures
