"""Reference streams: well-behaved requests whose texts are compared with undisturbed ones, and their gaps measured."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.serving.stream_client import StreamClient, StreamLost

MAX_TOKENS = 48
_STARTS = (
    "Once upon a time there was", "The tide comes in when", "A list of three colours:", "def add(a, b):",
    "Dear Sir or Madam,", "In the year 1871", "The recipe needs flour,", "My favourite animal is",
    "Water boils at", "The capital of France",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReferenceStream:
    """One request that is sent again and again."""

    index: int

    @property
    def over_websocket(self) -> bool:
        return self.index % 4 == 3

    @property
    def body(self) -> dict[str, Any]:
        """Greedy, seeded and penalised requests in turn, so that a wrong neighbour would show in many ways."""
        body: dict[str, Any] = {
            "prompt": f"{_STARTS[self.index % len(_STARTS)]} {self.index // len(_STARTS) or ''}".strip(),
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
            "temperature": 0.0,
        }
        match self.index % 3:
            case 1:
                body |= {"temperature": 0.9, "seed": self.index, "top_p": 0.95}
            case 2:
                body |= {"temperature": 1.0, "seed": self.index, "repetition_penalty": 1.2, "presence_penalty": 0.3}
        return body

    async def read(self, session: aiohttp.ClientSession, url: str, gaps: Gaps) -> str:
        """The whole text of one answer; raises StreamLost."""
        client = StreamClient(session, url, self.body, self.over_websocket)
        await client.read()
        gaps.seconds += client.gaps
        if client.finish_reasons != ["length"]:
            raise StreamLost(f"finish_reason {client.finish_reasons}")
        return client.text


@dataclass(slots=True)
class Gaps:
    seconds: list[float] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        """In milliseconds."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


async def undisturbed(
    session: aiohttp.ClientSession, url: str, streams: list[ReferenceStream]
) -> tuple[list[str], Gaps]:
    """The text of each stream that runs alone, and the gaps while all of them and no others run together."""
    texts = [await each.read(session, url, Gaps()) for each in streams]
    beside_others, gaps = await together(session, url, streams)
    assert beside_others == texts, "the reference streams change each other"
    return texts, gaps


async def together(session: aiohttp.ClientSession, url: str, streams: list[ReferenceStream]) -> tuple[list[str], Gaps]:
    """The text of each stream while all of them and no others run, and their gaps."""
    gaps = Gaps()
    return list(await asyncio.gather(*(each.read(session, url, gaps) for each in streams))), gaps
