"""One streamed request, read to its end or cut before."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from benchmarks.fleet.replicas import MODEL
from server.cli.client.sse_parser import SseParser
from server.router.replica import UNIX


class StreamLost(RuntimeError):
    """A stream ended otherwise than with its finish reason and [DONE]."""


@dataclass(slots=True)
class Answer:
    """What has come of one request."""

    text: str = ""
    finish_reasons: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    num_events: int = 0
    first_text: float | None = None  # seconds from the request to the first text

    @property
    def num_cached_tokens(self) -> int:
        """Of the prompt, as the server reports them."""
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))


async def ask(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], *, cut_after: int | None = None
) -> Answer:
    """Streams a completion, or a chat where `body` has messages.

    Args:
        url: `http://host:port`, or `unix:/path` for a server that listens there.
        cut_after: events with text after which the connection is closed.

    Raises:
        StreamLost: it was refused, reported an error, or ended early.
    """
    if url.startswith(UNIX):
        connector = aiohttp.UnixConnector(url.removeprefix(UNIX))
        async with aiohttp.ClientSession(connector=connector, timeout=session.timeout) as own:
            return await ask(own, "http://localhost", body, cut_after=cut_after)
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    # SGLang's router refuses a body without a model.
    body = {"model": MODEL, **body, "stream": True, "stream_options": {"include_usage": True}}
    answer, parser, last = Answer(), SseParser(), b""
    began = time.perf_counter()
    try:
        async with session.post(url + path, json=body) as response:
            if response.status != 200:
                raise StreamLost(f"HTTP {response.status}: {(await response.text())[:300]}")
            async for piece in response.content.iter_any():
                for last in parser.feed(piece):
                    if last != b"[DONE]":
                        _take(answer, orjson.loads(last))
                if answer.first_text is None and answer.num_events:
                    answer.first_text = time.perf_counter() - began
                if cut_after is not None and answer.num_events >= cut_after:
                    response.close()
                    return answer
    except (aiohttp.ClientError, OSError) as error:
        raise StreamLost(f"{type(error).__name__} after {answer.num_events} events: {error}") from error
    if last != b"[DONE]" or len(answer.finish_reasons) != 1:
        raise StreamLost(f"it ended after {answer.num_events} events with {answer.finish_reasons}")
    return answer


def _take(answer: Answer, event: dict[str, Any]) -> None:
    if "error" in event:
        raise StreamLost(f"error in the stream: {event['error']}")
    answer.usage = event.get("usage") or answer.usage
    for choice in event["choices"]:
        text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        answer.text += text
        answer.num_events += bool(text)
        if choice["finish_reason"] is not None:
            answer.finish_reasons.append(choice["finish_reason"])
