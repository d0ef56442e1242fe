"""The routes by which pages reach the MCP servers that the operator has named, which browsers alone could not.

Most MCP servers allow no other origins, and their keys must not be in a page. So the page's messages are passed on as
they are; what a message means is between the page and the MCP server.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import ExitStack
from http import HTTPStatus

import aiohttp
from aiohttp import hdrs, web

from server.admission.admission_budget import FairLimit, Reservation
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED, SHARE, read_body
from server.http.mcp.config import McpServer, read_config
from server.http.mcp.session_ids import seal, unseal
from server.http.mcp.upstream import MAX_ANSWER_BYTES, PROTOCOL_HEADER, SESSION_HEADER, Upstream, failed
from server.http.transport.event_stream import EventStreamResponse
from server.http.transport.json_body import json_response, send_whole
from server.protocol.errors import RETRY_AFTER_S, ApiError
from server.startup.settings import ServerSettings

SERVERS = "/v1/mcp"
SERVER = SERVERS + "/{name}"
MAX_CALLS = 32  # at once, of all keys

_CONFIG = web.AppKey("mcp_servers", dict[str, McpServer])
_UPSTREAM = web.AppKey("mcp_upstream", Upstream)
_CALLS = web.AppKey("mcp_calls", FairLimit)
_EVENTS = "text/event-stream"


def add_routes(app: web.Application, settings: ServerSettings) -> None:
    """Adds GET /v1/mcp, and POST and DELETE /v1/mcp/{name}; raises McpConfigError where the file cannot be used."""
    path = settings.mcp_config
    app[_CONFIG] = {} if path is None else read_config(path, os.environ)
    app[_CALLS] = FairLimit(MAX_CALLS)
    app.cleanup_ctx.append(_connect)
    app.router.add_get(SERVERS, list_servers)
    app.router.add_post(SERVER, pass_message)
    app.router.add_delete(SERVER, end_session)


async def list_servers(request: web.Request) -> web.Response:
    """GET /v1/mcp: the names of the MCP servers; addresses and keys are not shown."""
    return json_response(
        {"object": "list", "data": [{"id": name, "object": "mcp_server"} for name in request.app[_CONFIG]]}
    )


async def pass_message(request: web.Request) -> web.StreamResponse:
    """POST /v1/mcp/{name}: passes a JSON-RPC message on, and its answer back, whole or as events."""
    server, served = _find(request), request.app[SERVED]
    forwarded = _forwarded(request, server)
    with request.app[_CALLS].hold(lambda: _too_many(request)):
        with ExitStack() as receiving:

            def receive() -> Reservation:
                share = request[SHARE] = receiving.enter_context(served.admission_budget.receive())
                return share

            body = await read_body(request, receive, served.settings, served.workers)
        async with request.app[_UPSTREAM].request(server, hdrs.METH_POST, forwarded, body) as answer:
            began = answer.headers.get(SESSION_HEADER)
            session = {} if began is None else {SESSION_HEADER: seal(began, server.name, request[TENANT])}
            if answer.status == HTTPStatus.OK and answer.content_type == _EVENTS:
                async with EventStreamResponse(request, served.settings, headers=session) as stream:
                    async for events in _events(server, answer):
                        await stream.write([events])
                    await stream.open()
                    await stream.end()
                return stream.response
            whole = web.Response(
                body=await _whole(server, answer), status=answer.status, headers=session,
                content_type="application/json",
            )  # fmt: skip
            return await send_whole(request, whole, served.settings)


async def end_session(request: web.Request) -> web.Response:
    """DELETE /v1/mcp/{name}: ends the session of the header; a server may not know how to."""
    server = _find(request)
    forwarded = _forwarded(request, server)
    with request.app[_CALLS].hold(lambda: _too_many(request)):
        async with request.app[_UPSTREAM].request(server, hdrs.METH_DELETE, forwarded, None) as answer:
            return web.Response(status=answer.status)


async def _connect(app: web.Application) -> AsyncIterator[None]:
    app[_UPSTREAM] = Upstream()
    yield
    await app[_UPSTREAM].close()


def _find(request: web.Request) -> McpServer:
    name = request.match_info["name"]
    server = request.app[_CONFIG].get(name)
    if server is None:
        raise ApiError(
            f"there is no MCP server {name[:64]}; --mcp-config names those of this server",
            status=HTTPStatus.NOT_FOUND,
            param="name",
            code="mcp_server_not_found",
        )
    return server


def _forwarded(request: web.Request, server: McpServer) -> dict[str, str]:
    """The headers of the protocol that a client has sent; raises ApiError (404) for a session that is not its own."""
    forwarded = {PROTOCOL_HEADER: request.headers[PROTOCOL_HEADER]} if PROTOCOL_HEADER in request.headers else {}
    sealed = request.headers.get(SESSION_HEADER)
    if sealed is not None:
        session_id = unseal(sealed, server.name, request[TENANT])
        if session_id is None:
            raise ApiError(
                f"{SESSION_HEADER} is no session that this key has begun with the MCP server {server.name}",
                status=HTTPStatus.NOT_FOUND,
                param=SESSION_HEADER,
                code="mcp_session_not_found",
            )
        forwarded[SESSION_HEADER] = session_id
    return forwarded


def _too_many(request: web.Request) -> ApiError:
    calls = request.app[_CALLS]
    return ApiError(
        f"{calls.total} messages to MCP servers wait for their answers already; the limit is {calls.limit}",
        status=HTTPStatus.TOO_MANY_REQUESTS,
        error_type="rate_limit_error",
        code="too_many_mcp_calls",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


async def _events(server: McpServer, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Whole events, because pings come between them; a last one that is cut is left out."""
    pending, num_bytes, half = bytearray(), 0, b""
    async for part in answer.content.iter_any():
        num_bytes += len(part)
        if num_bytes > MAX_ANSWER_BYTES:
            raise _too_large(server)
        part = half + part
        half = b"\r" if part.endswith(b"\r") else b""  # of the end of a line
        pending += part.removesuffix(b"\r").replace(b"\r\n", b"\n")
        end = pending.rfind(b"\n\n") + 2
        if end >= 2:
            yield bytes(pending[:end])
            del pending[:end]


async def _whole(server: McpServer, answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            raise _too_large(server)
    return bytes(body)


def _too_large(server: McpServer) -> ApiError:
    return failed(server, f"answers with more than {MAX_ANSWER_BYTES} bytes, the limit")
