"""Clients over HTTP, whose answers are streams of server-sent events."""

import time
from typing import Any

import aiohttp
import orjson

from server.cli.bench.load.trace import Arrival, Trace
from server.cli.bench.load.workload import Workload
from server.cli.client.address import root_of
from server.cli.client.sse_parser import SseParser

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_MAX_QUOTED = 300  # characters of an error

# Where the text of a chat's delta may be; servers differ in the name for reasoning.
_CHAT_TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")


class RequestFailed(RuntimeError):
    """The server refused the request, reported an error in its stream, or ended the stream too early."""


class HttpClients:
    """Sends requests with POST; requests at the same time use different connections."""

    def __init__(self, session: aiohttp.ClientSession, workload: Workload) -> None:
        self._session = session
        self._url = root_of(workload.url) + PATHS[workload.route]
        self._options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        if workload.return_token_ids:
            self._options["return_token_ids"] = True

    async def run(self, trace: Trace, body: dict[str, Any]) -> None:
        """Sends one request and records its answer in `trace`.

        Raises RequestFailed where the server refused it or its stream has an error or no end, and the errors of aiohttp
        and orjson.
        """
        data = orjson.dumps(body | self._options)
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        trace.sent = time.perf_counter()
        async with self._session.post(self._url, data=data, headers=headers) as response:
            if response.status != 200:
                text = (await response.content.read(_MAX_QUOTED)).decode(errors="replace")
                raise RequestFailed(f"HTTP {response.status}: {text}")
            parser = SseParser()
            event = b""
            # The answer is read to its end, so that the connection can be used again.
            async for chunk in response.content.iter_any():
                now = time.perf_counter()
                for event in parser.feed(chunk):
                    if event != b"[DONE]":
                        _take(trace, now, orjson.loads(event))
        if event != b"[DONE]":
            raise RequestFailed("the stream ended without [DONE]")

    async def close(self) -> None:
        """Does nothing: the session owns the connections."""


def _take(trace: Trace, now: float, event: dict[str, Any]) -> None:
    if event.get("error"):
        raise RequestFailed(f"error in the stream: {event['error']}"[:_MAX_QUOTED])
    if usage := event.get("usage"):
        take_usage(trace, usage)
    for choice in event.get("choices", ()):
        # Without ids, a chunk with text counts as one token. So does the end of a stream without any text,
        # because a token may be only a part of a character.
        delta = choice.get("delta")
        has_text = choice.get("text") if delta is None else any(delta.get(name) for name in _CHAT_TEXTS)
        has_token = has_text or (choice.get("finish_reason") and not trace.arrivals)
        num_tokens = len(choice.get("token_ids") or ()) or int(bool(has_token))
        if num_tokens:
            trace.arrivals.append(Arrival(now, num_tokens))
        trace.finish_reason = choice.get("finish_reason") or trace.finish_reason


def take_usage(trace: Trace, usage: dict[str, Any]) -> None:
    trace.num_output_tokens = usage["completion_tokens"]
    trace.num_prompt_tokens = usage.get("prompt_tokens")
    trace.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
