"""The way to an MCP server over streamable HTTP (Model Context Protocol, revision 2025-06-18, "Transports")."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson
from aiohttp import hdrs

from server.cli.client.errors import reason_of
from server.cli.client.sse_parser import SseParser
from server.cli.tools.transport import MAX_ANSWER_BYTES, McpError, SessionEnded, messages_of, shortened

CONNECT_S = 10.0
SILENCE_S = 120.0  # until an answer begins, and between its parts
CLOSE_S = 2.0
MAX_ERROR_BYTES = 1 << 16

_SESSION, _PROTOCOL = "Mcp-Session-Id", "Mcp-Protocol-Version"
_TAKEN = (HTTPStatus.OK, HTTPStatus.ACCEPTED, HTTPStatus.NO_CONTENT)


class HttpTransport:
    """Sends each message as a POST to `url`, with `headers`; redirects are not followed."""

    def __init__(self, name: str, url: str, headers: Mapping[str, str]) -> None:
        self._name = name
        self._url = url
        self._headers: dict[str, str] = {
            hdrs.ACCEPT: "application/json, text/event-stream",
            hdrs.CONTENT_TYPE: "application/json",
        }
        self._headers |= headers
        self._state: dict[str, str] = {}  # the headers of the session
        self._client: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._state.clear()

    def set_protocol(self, version: str) -> None:
        self._state[_PROTOCOL] = version

    async def request(self, message: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async with self._post(message) as answer:
            if _SESSION in answer.headers:
                self._state[_SESSION] = answer.headers[_SESSION]
            if answer.content_type != "text/event-stream":
                for found in messages_of(b"".join([part async for part in self._parts(answer)])):
                    yield found
                return
            parser = SseParser()
            async for part in self._parts(answer):
                for data in parser.feed(part):
                    for found in messages_of(data):
                        yield found

    async def notify(self, message: dict[str, Any]) -> None:
        async with self._post(message):
            pass

    async def close(self) -> None:
        if self._client is None:
            return
        if _SESSION in self._state:
            with contextlib.suppress(aiohttp.ClientError, OSError, ValueError, TimeoutError):
                timeout = aiohttp.ClientTimeout(total=CLOSE_S)
                headers = self._headers | self._state
                async with self._client.delete(self._url, headers=headers, allow_redirects=False, timeout=timeout):
                    pass
        await self._client.close()

    async def _parts(self, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for part in answer.content.iter_any():
            num_bytes += len(part)
            if num_bytes > MAX_ANSWER_BYTES:
                raise McpError(f"{self._name} answers with more than {MAX_ANSWER_BYTES} bytes, the limit")
            yield part

    @asynccontextmanager
    async def _post(self, message: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=SILENCE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        try:
            async with self._client.post(
                self._url, data=orjson.dumps(message), headers=self._headers | self._state, allow_redirects=False
            ) as answer:
                if answer.status not in _TAKEN:
                    raise await self._refusal(answer)
                yield answer
        except TimeoutError as error:
            raise McpError(f"{self._name} has not answered in time") from error
        except aiohttp.ClientError as error:
            raise McpError(f"{self._name} cannot be reached: {reason_of(error)}") from error
        except (OSError, ValueError) as error:  # ValueError: headers that cannot be sent
            raise McpError(f"{self._name} cannot be reached: {error}") from error

    async def _refusal(self, answer: aiohttp.ClientResponse) -> McpError:
        if answer.status == HTTPStatus.NOT_FOUND and _SESSION in self._state:
            return SessionEnded(f"{self._name} has ended the session")
        for found in messages_of(await answer.content.read(MAX_ERROR_BYTES)):
            match found:
                case {"error": {"message": str(reason)}}:
                    return McpError(f"{self._name}: {shortened(reason)}")
        return McpError(f"{self._name} answers with status {answer.status}")
