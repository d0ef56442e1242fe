"""Rounds of an attacked server: the reference streams run for a while, with attacks or alone."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp

from benchmarks.chaos.attackers import attackers_process
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.pauses import Pause, Pauses
from benchmarks.chaos.reference_streams import Gaps, ReferenceStream
from benchmarks.serving.stream_client import StreamLost, StreamRefused


@dataclass(slots=True)
class Stage:
    """The server, its reference streams with their expected texts, and the ledger of all rounds."""

    url: str
    session: aiohttp.ClientSession  # with the reference streams' key
    streams: list[ReferenceStream]
    texts: list[str]
    num_attackers: int
    pauses: Pauses
    ledger: Ledger = field(default_factory=Ledger)
    num_rounds: int = 0
    # Reference streams that run together; None: all. Where one of them always waits for every slot of the server,
    # attackers' requests of a lower priority never run, and the round does not end.
    most_at_once: int | None = None

    async def calm(self, seconds: float) -> Round:
        return await self._watch(asyncio.create_task(asyncio.sleep(seconds)))

    async def attacked(self, seconds: float, seed: int, name: str | None = None) -> Round:
        """The reference streams during every attack, or during one alone. No two rounds draw the same."""
        self.num_rounds += 1
        seed = seed * 1_000_003 + self.num_rounds
        ledger = Ledger(may_be_full=self.ledger.may_be_full)
        attacks = attackers_process(self.url, name, self.num_attackers, seconds, seed, ledger)
        running = asyncio.create_task(attacks)
        outcome = await self._watch(running)
        self.ledger.add(await running)
        return outcome

    async def _watch(self, until: asyncio.Task[object]) -> Round:
        """Runs every reference stream again and again, and compares its text, until the task has ended."""
        outcome, began = Round(), time.perf_counter()
        turns = asyncio.Semaphore(self.most_at_once or len(self.streams))

        async def repeat(stream: ReferenceStream, text: str) -> None:
            while True:
                try:
                    async with turns:
                        got = await stream.read(self.session, self.url, outcome.gaps)
                except StreamRefused as error:
                    if not self.ledger.may_be_full:
                        self.ledger.fail(f"reference stream {stream.index} was refused: {error}")
                    self.ledger.note("reference streams", "refused")
                    await asyncio.sleep(1.0)
                except StreamLost as error:
                    self.ledger.fail(f"reference stream {stream.index} was disturbed: {error}")
                    await asyncio.sleep(1.0)
                else:
                    if got != text:
                        self.ledger.fail(f"reference stream {stream.index} got {got!r} and should have got {text!r}")
                    outcome.num_streams += 1
                if until.done():
                    return

        await asyncio.gather(*(repeat(*pair) for pair in zip(self.streams, self.texts, strict=True)))
        ended = time.perf_counter()
        outcome.pauses = self.pauses.longest(began, ended)
        outcome.longest_turn = self.pauses.longest_turn(began, ended)
        return outcome


@dataclass(slots=True)
class Round:
    num_streams: int = 0  # that were compared
    gaps: Gaps = field(default_factory=Gaps)
    pauses: list[Pause] = field(default_factory=list)  # of the server, the longest of each kind
    longest_turn: float = 0.0  # of the server's asyncio loop, in seconds of processor time

    @property
    def p50(self) -> float:
        return self.gaps.quantile(0.5)

    @property
    def p99(self) -> float:
        return self.gaps.quantile(0.99)
