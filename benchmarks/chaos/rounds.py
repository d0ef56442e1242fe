"""One round: the witnesses' streams for a while, beside attacks or alone."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp

from benchmarks.chaos.attackers import attackers_process
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.pauses import Pause, Pauses
from benchmarks.chaos.witnesses import Gaps, Witness, read_stream


@dataclass(slots=True)
class Stage:
    """The server, the witnesses, what each of them must get, and where failures are noted."""

    url: str
    session: aiohttp.ClientSession  # with the witnesses' key
    witnesses: list[Witness]
    texts: list[str]
    num_attackers: int
    pauses: Pauses
    ledger: Ledger = field(default_factory=Ledger)
    num_rounds: int = 0
    # Witnesses whose streams run together; None: all. Where every slot of the server always has a witness that waits
    # for it, what an attacker asks for at a lower priority never runs, and the round does not end.
    most_at_once: int | None = None

    async def calm(self, seconds: float) -> Round:
        """The witnesses alone."""
        return await self._watch(asyncio.create_task(asyncio.sleep(seconds)))

    async def attacked(self, seconds: float, seed: int, name: str | None = None) -> Round:
        """The witnesses beside every attack, or beside one alone. No two rounds draw the same."""
        self.num_rounds += 1
        attacks = attackers_process(self.url, name, self.num_attackers, seconds, seed * 1_000_003 + self.num_rounds)
        running = asyncio.create_task(attacks)
        outcome = await self._watch(running)
        self.ledger.add(await running)
        return outcome

    async def _watch(self, until: asyncio.Task[object]) -> Round:
        """Runs every witness again and again, and compares what it gets, until the task has ended."""
        outcome, began = Round(), time.perf_counter()
        turns = asyncio.Semaphore(self.most_at_once or len(self.witnesses))

        async def repeat(witness: Witness, text: str) -> None:
            while True:
                try:
                    async with turns:
                        got = await read_stream(self.session, self.url, witness, outcome.gaps)
                except (AssertionError, aiohttp.ClientError) as error:
                    self.ledger.fail(f"witness {witness.index} was disturbed: {error}")
                    await asyncio.sleep(1.0)
                else:
                    if got != text:
                        self.ledger.fail(f"witness {witness.index} got {got!r} and should have got {text!r}")
                    outcome.num_streams += 1
                if until.done():
                    return

        await asyncio.gather(*(repeat(*pair) for pair in zip(self.witnesses, self.texts, strict=True)))
        outcome.pauses = self.pauses.longest(began, time.perf_counter())
        return outcome


@dataclass(slots=True)
class Round:
    """What the witnesses met."""

    num_streams: int = 0  # that were compared
    gaps: Gaps = field(default_factory=Gaps)
    pauses: list[Pause] = field(default_factory=list)  # of the server, the longest of each kind

    @property
    def p50(self) -> float:
        """Milliseconds between the pieces of a stream."""
        return self.gaps.quantile(0.5)

    @property
    def p99(self) -> float:
        """Milliseconds between the pieces of a stream."""
        return self.gaps.quantile(0.99)
