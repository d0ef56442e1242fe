"""HTTP client of a server: JSON, and streams of server-sent events."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import orjson

from server.cli.client.address import check_address, root_of, shown
from server.cli.client.errors import NoAnswer, NoModel, NoServer, reason_of
from server.cli.client.sse_parser import SseParser

CONNECT_TIMEOUT_S = 5.0


class Piece(NamedTuple):
    text: str
    is_reasoning: bool = False


class ServerClient:
    """A client of the server at `url`, without a password; each call opens a connection.

    A cancellation closes the connection, and so the server aborts the request. The methods raise `NoServer` if no
    server listens, and `NoAnswer` if it refuses the request, fails, or closes the connection too early.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Raises NoAnswer as `check_address`."""
        check_address(url, api_key)
        self.url = shown(url)
        self._root = root_of(url)
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}

    async def get(self, path: str, *, is_ready: bool = True) -> bytes:
        """The body of GET `path`; if `is_ready`, the status 503 of a server that loads or shuts down is an error."""
        async with self._request("GET", path, None, (200,) if is_ready else (200, 503)) as response:
            return await response.read()

    async def events(self, path: str, body: dict[str, Any] | None = None) -> AsyncGenerator[Any, None]:
        """The JSON of each event of the stream at `path` until its end or `[DONE]`; POST if there is a body."""
        async with self._request("GET" if body is None else "POST", path, body, (200,)) as response:
            parser = SseParser()
            async for chunk in response.content.iter_any():
                for data in parser.feed(chunk):
                    if data == b"[DONE]":
                        return
                    try:
                        event = orjson.loads(data)
                    except orjson.JSONDecodeError:
                        raise NoAnswer(f"the server at {self.url} sent an event that is not JSON") from None
                    if "error" in event:
                        raise NoAnswer(event["error"]["message"])
                    yield event
        if body is not None:
            raise NoAnswer(f"the server at {self.url} ended the stream before the answer's end")

    async def answer(self, body: dict[str, Any]) -> AsyncGenerator[Piece, None]:
        """The first choice of the answer to `body`: to `/v1/chat/completions` if it has messages."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        async for chunk in self.events(path, {**body, "stream": True}):
            for choice in chunk["choices"][:1]:
                delta = choice.get("delta", choice)
                if reasoning := delta.get("reasoning_content"):
                    yield Piece(reasoning, is_reasoning=True)
                if text := delta.get("text") or delta.get("content"):
                    yield Piece(text)

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None, statuses: tuple[int, ...]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session,
                session.request(method, self._root + path, json=body) as response,
            ):
                if response.status not in statuses:
                    raise _refusal(await response.read(), response.status)
                yield response
        except aiohttp.ClientConnectorError as error:
            raise NoServer(f"no server answers at {self.url}: {reason_of(error)}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NoAnswer(f"the connection to {self.url} broke: {reason_of(error)}") from error


def _refusal(body: bytes, status: int) -> NoAnswer:
    try:
        error = orjson.loads(body)["error"]
        return (NoModel if error.get("code") == "model_not_found" else NoAnswer)(str(error["message"]))
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return NoAnswer(f"the server answered with status {status}")
