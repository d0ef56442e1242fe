"""Well-behaved streams: their texts are compared with undisturbed ones, and their gaps are measured."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from server.cli.client.sse_parser import SseParser

TIMEOUT = aiohttp.ClientTimeout(total=None, sock_read=120)
MAX_TOKENS = 48

_STARTS = (
    "Once upon a time there was", "The tide comes in when", "A list of three colours:", "def add(a, b):",
    "Dear Sir or Madam,", "In the year 1871", "The recipe needs flour,", "My favourite animal is",
    "Water boils at", "The capital of France",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Witness:
    """One request that is sent again and again."""

    index: int

    @property
    def over_socket(self) -> bool:
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


@dataclass(slots=True)
class Gaps:
    """Seconds between the pieces of text of all streams."""

    seconds: list[float] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        """In milliseconds."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


async def read_stream(session: aiohttp.ClientSession, url: str, witness: Witness, gaps: Gaps) -> str:
    """The whole text of a witness's answer, over SSE or the WebSocket.

    Raises:
        AssertionError: the stream ended otherwise than with its last token.
    """
    return await (_read_socket if witness.over_socket else _read_sse)(session, url, witness, gaps)


async def _read_sse(session: aiohttp.ClientSession, url: str, witness: Witness, gaps: Gaps) -> str:
    text, reason, is_done = "", None, False
    parser, last = SseParser(), 0.0
    body = {**witness.body, "stream": True}
    async with session.post(f"{url}/v1/completions", json=body, timeout=TIMEOUT) as response:
        assert response.status == 200, await response.text()
        async for piece in response.content.iter_any():
            for data in parser.feed(piece):
                if data == b"[DONE]":
                    is_done = True
                    continue
                chunk = orjson.loads(data)
                assert "error" not in chunk, chunk
                last = _note_gap(gaps, last)
                text += chunk["choices"][0]["text"]
                reason = chunk["choices"][0]["finish_reason"]
    assert is_done, "the stream ended without [DONE]"
    assert reason == "length", f"finish_reason {reason}"
    return text


async def _read_socket(session: aiohttp.ClientSession, url: str, witness: Witness, gaps: Gaps) -> str:
    text, last = "", 0.0
    async with session.ws_connect(f"{url}/v1/stream", max_msg_size=1 << 24) as socket:
        await socket.send_json({"type": "generate", "id": "w", **witness.body})
        async for message in socket:
            event = orjson.loads(message.data)
            if event["type"] == "delta":
                last = _note_gap(gaps, last)
                text += event["text"]
            elif event["type"] == "done":
                assert event["finish_reason"] == "length", event
                return text
            else:
                assert event["type"] != "error", event
    raise AssertionError("the socket closed before the end")


def _note_gap(gaps: Gaps, last: float) -> float:
    now = time.perf_counter()
    if last:
        gaps.seconds.append(now - last)
    return now


async def undisturbed(session: aiohttp.ClientSession, url: str, witnesses: list[Witness]) -> tuple[list[str], Gaps]:
    """The texts that each witness gets alone, and the gaps while all of them run together and nobody else does."""
    texts = [await read_stream(session, url, witness, Gaps()) for witness in witnesses]
    gaps = Gaps()
    together = await asyncio.gather(*(read_stream(session, url, witness, gaps) for witness in witnesses))
    assert together == texts, "the witnesses disturb each other"
    return texts, gaps
