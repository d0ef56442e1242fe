"""A client of one streamed request, over SSE or a WebSocket, which can be cut and resumed."""

import json
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp

from server.startup.settings import DEFAULT_MODEL

UNIX = "unix:"  # begins the address of a server that listens on a Unix socket
_NO_STREAM = "none"  # in the header of a stream that cannot be resumed
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_read=120)


class StreamLost(RuntimeError):
    """A stream ended otherwise than with its finish reasons and its last event."""


class StreamRefused(StreamLost):
    """A stream never began: there was no connection, or the server had no room for it."""


def new_session(**options: Any) -> aiohttp.ClientSession:
    """A session with any number of connections, which end where nothing comes for two minutes."""
    return aiohttp.ClientSession(timeout=TIMEOUT, connector=aiohttp.TCPConnector(limit=0), **options)


@dataclass(slots=True)
class StreamClient:
    """Reads one request, over as many connections as it takes, into its fields; a chat over SSE alone.

    `read` goes on after the last event that was taken.
    """

    http: aiohttp.ClientSession
    url: str
    body: dict[str, Any]
    over_websocket: bool = False
    stream: str = ""  # the id by which a stream is resumed
    position: str = ""  # of the last event, likewise
    is_done: bool = False
    texts: list[str] = field(default_factory=list)  # of each choice
    finish_reasons: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    began: float = 0.0  # time.perf_counter
    times: list[float] = field(default_factory=list)  # of each event with text

    def __post_init__(self) -> None:
        self.texts = [""] * self.body.get("n", 1)
        self.began = time.perf_counter()

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def num_events(self) -> int:
        """Events with text."""
        return len(self.times)

    @property
    def gaps(self) -> list[float]:
        """Seconds between two events with text."""
        return [later - earlier for earlier, later in pairwise(self.times)]

    @property
    def first_text(self) -> float | None:
        """Seconds from the request to the first text."""
        return self.times[0] - self.began if self.times else None

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt from the prefix cache, as the server reports them."""
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))

    async def read(self, most: int | None = None) -> None:
        """Reads to the end, or takes up to `most` further events with text and cuts the connection.

        Raises StreamRefused; raises StreamLost where the stream reported an error or ended early.
        """
        events = self._websocket_events() if self.over_websocket else self._sse_events()
        stop_at = None if most is None else self.num_events + most
        try:
            async for event in events:
                self._take(event)
                if self.num_events == stop_at:
                    return
        except (aiohttp.ClientError, OSError) as error:
            kind = StreamLost if self.num_events else StreamRefused
            raise kind(f"{type(error).__name__} after {self.num_events} events: {error}") from error
        finally:
            await events.aclose()
        if not self.is_done or len(self.finish_reasons) != len(self.texts):
            raise StreamLost(f"it ended after {self.num_events} events with {self.finish_reasons}")

    async def _sse_events(self) -> AsyncGenerator[Any, None]:
        """The data of the events; None for `[DONE]`."""
        if self.stream:
            headers = {"Last-Event-ID": self.position}
            request = self.http.get(f"{self.url}/v1/streams/{self.stream}", headers=headers)
        else:
            path = "/v1/chat/completions" if "messages" in self.body else "/v1/completions"
            request = self.http.post(self.url + path, json={**self.body, "stream": True})
        async with request as response:
            if response.status != 200:
                kind = StreamRefused if response.status == 503 else StreamLost
                raise kind(f"HTTP {response.status}: {(await response.text())[:300]}")
            self.stream = self.stream or response.headers.get("X-Eagre-Stream", _NO_STREAM)
            rest = b""
            async for piece in response.content.iter_any():
                *blocks, rest = (rest + piece).split(b"\n\n")
                for block in blocks:
                    lines = dict(line.partition(": ")[::2] for line in block.decode().split("\n"))
                    if "data" in lines:
                        self.position = lines.get("id", "")
                        yield None if lines["data"] == "[DONE]" else json.loads(lines["data"])

    async def _websocket_events(self) -> AsyncGenerator[Any, None]:
        if self.stream:
            request = {"type": "resume", "stream": self.stream}
            request |= {"after": self.position} if self.position else {}
        else:
            request = {"type": "generate", **self.body}
        async with self.http.ws_connect(f"{self.url}/v1/stream", max_msg_size=1 << 24) as socket:
            await socket.send_json({**request, "id": "a"})
            async for frame in socket:
                message = frame.json()
                self.stream = self.stream or message.get("stream", _NO_STREAM)
                self.position = message.get("place", "")
                yield message
                if message["type"] in ("done", "error"):
                    return

    def _take(self, event: Any) -> None:
        if event is None:
            self.is_done = True
        elif "error" in event or event.get("type") == "error":
            raise StreamLost(f"error in the stream: {event.get('error', event)}")
        elif "choices" in event:
            self.usage = event.get("usage") or self.usage
            for choice in event["choices"]:
                text = choice["text"] if "text" in choice else choice["delta"].get("content")
                self._take_text(choice.get("index", 0), text, choice["finish_reason"])
        elif event["type"] == "delta":
            self._take_text(event["index"], event["text"], None)
        elif event["type"] == "done":
            self.is_done = True
            self.finish_reasons += event.get("finish_reasons") or [event["finish_reason"]]

    def _take_text(self, choice: int, text: str | None, finish_reason: str | None) -> None:
        if text:
            self.texts[choice] += text
            self.times.append(time.perf_counter())
        if finish_reason is not None:
            self.finish_reasons.append(finish_reason)


async def stream_completion(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], *, cut_after: int | None = None
) -> StreamClient:
    """Streams a completion, or a chat where `body` has messages, over SSE and with its usage; raises StreamLost.

    `url` is `http://host:port`, or `unix:/path`. The connection is closed after `cut_after` events with text.
    """
    if url.startswith(UNIX):
        connector = aiohttp.UnixConnector(url.removeprefix(UNIX))
        async with aiohttp.ClientSession(connector=connector, timeout=http.timeout) as own:
            return await stream_completion(own, "http://localhost", body, cut_after=cut_after)
    # SGLang's router refuses a body without a model.
    client = StreamClient(http, url, {"model": DEFAULT_MODEL, **body, "stream_options": {"include_usage": True}})
    await client.read(cut_after)
    return client
