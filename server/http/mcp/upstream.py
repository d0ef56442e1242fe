"""Requests to MCP servers over streamable HTTP (Model Context Protocol, revision 2025-06-18, "Transports")."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus

import aiohttp
from aiohttp import hdrs

from server.http.mcp.config import McpServer
from server.protocol.errors import ApiError

CONNECT_S = 10.0
SILENCE_S = 120.0  # until the answer of a tool begins, and between its parts
MAX_ANSWER_BYTES = 8 << 20

SESSION_HEADER = "Mcp-Session-Id"
PROTOCOL_HEADER = "Mcp-Protocol-Version"
_NO_STATUS = 600  # the first number beyond those of HTTP
_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)


class Upstream:
    """Sends requests to MCP servers; one for an application. `close` must be called in the end."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=SILENCE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            requote_redirect_url=False,
        )

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def request(
        self, server: McpServer, method: str, forwarded: Mapping[str, str], body: bytes | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a request and gives its answer, whose body is still to be read; redirects are not followed.

        Args:
            forwarded: headers of the protocol, from the client; its key and its cookies stay here.

        Raises:
            ApiError: 502, the server cannot be reached, refuses the operator's key, wants to redirect, answers with a
                status that ends no request, or encodes its answer, which could become a thousand times as large.
        """
        sent = {
            **forwarded,
            hdrs.ACCEPT: "application/json, text/event-stream",
            hdrs.ACCEPT_ENCODING: "identity",
            hdrs.CONTENT_TYPE: "application/json",
            **server.headers,
        }
        try:
            async with self._session.request(
                method, server.url, data=body, headers=sent, allow_redirects=False
            ) as answer:
                if answer.status in _REFUSALS:
                    raise failed(server, f"refuses the key of this server's operator (status {answer.status})")
                if HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST:
                    raise failed(server, f"redirects (status {answer.status}), which is not followed")
                if not HTTPStatus.OK <= answer.status < _NO_STATUS:
                    raise failed(server, f"answers with the status {answer.status}, which ends no request")
                if answer.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
                    raise failed(server, "encodes its answer, which was not wanted")
                yield answer
        except TimeoutError as error:
            raise failed(server, f"has not answered within {SILENCE_S:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: headers that cannot be read
            raise failed(server, "cannot be reached") from error


def failed(server: McpServer, what: str) -> ApiError:
    """502, with the server's name and without its address."""
    return ApiError(
        f"the MCP server {server.name} {what}",
        status=HTTPStatus.BAD_GATEWAY,
        error_type="mcp_error",
        code="mcp_server_failed",
    )
