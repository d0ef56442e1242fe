"""Every private name of aiohttp and asyncio that the server uses; `PRIVATE_NAMES` lists them, and a test checks them.

Most of them break cycles of references in which aiohttp and asyncio leave what has ended.
Only a garbage collection frees a cycle, and it stops all threads while it does so. A crowd of short connections left
a hundred thousand objects in a few seconds; freeing them held the interpreter for up to 147 ms. Without cycles each
object goes when its last user does.

What keeps these cycles are private attributes. Where another version has none of that name, nothing happens, and memory
is freed later. A name that `PRIVATE_NAMES` calls needed must be replaced before a version without it is used.
"""

import asyncio
from asyncio.sslproto import SSLProtocol
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import _ErrInfo
from aiohttp.web_urldispatcher import MatchInfoError

# Each private name of a class, and what to do in a version that has it no more.
PRIVATE_NAMES: dict[tuple[str, str], str] = {
    ("aiohttp.web:AppRunner", "_make_server"): "needed: find another way to give GuardedRunner a server of its own",
    ("aiohttp.web:RequestHandler", "_handle_request"): "needed: find where a request can wait for its turn",
    ("aiohttp.web:RequestHandler", "_messages"): "needed: see whether a body that ends wrongly raises by itself",
    ("aiohttp.web:RequestHandler", "_current_request"): "needed: see whether a body that ends wrongly raises by itself",
    ("aiohttp.web:RequestHandler", "_data_received_cb"): "drop untie_connection if no WebSocket is kept without it",
    ("aiohttp.web_protocol:_ErrInfo", "message"): "needed: see whether a body that ends wrongly raises by itself",
    ("aiohttp.web:Request", "_match_info"): "drop untie_unmatched if a request without a route is freed without it",
    ("aiohttp.web:AbstractRoute", "_handler"): "drop untie_unmatched if a request without a route is freed without it",
    (
        "aiohttp.web:WebSocketResponse",
        "_exception",
    ): "drop untie_socket if a failed socket is freed without it",
    ("aiohttp.web:WebSocketResponse", "_heartbeat"): "drop untie_socket if no timer keeps a closed socket",
    ("aiohttp.web:WebSocketResponse", "_cancel_heartbeat"): "drop untie_socket if no timer keeps a closed socket",
    ("aiohttp.http_websocket:WebSocketReader", "_handle_frame"): "needed: find where a client's frames can be checked",
    ("asyncio.selector_events:_SelectorSocketTransport", "_read_ready_cb"): "drop untie_transport if it is freed",
    ("asyncio.sslproto:_SSLProtocolTransport", "_ssl_protocol"): "drop bare_transport if TLS leaves no cycle",
    ("asyncio.sslproto:SSLProtocol", "_transport"): "drop bare_transport if TLS leaves no cycle",
    ("asyncio.sslproto:SSLProtocol", "max_size"): "drop limit_tls_buffers if a handshake takes less memory without it",
}

TLS_BUFFER_BYTES = 32 << 10  # two of the longest records

# Methods of a socket's transport that it keeps itself; the second one is there from Python 3.12 on.
_OWN_METHODS = ("_read_ready_cb", "_write_ready")


def limit_tls_buffers() -> None:
    """Has each TLS connection of this process, from now on, read into a buffer of TLS_BUFFER_BYTES.

    Each has one of its own, all of which takes memory from the first message of its handshake on. With asyncio's of
    256 KiB, a crowd that begins handshakes took a gigabyte.
    """
    SSLProtocol.max_size = TLS_BUFFER_BYTES


def bare_transport(transport: asyncio.BaseTransport) -> asyncio.BaseTransport:
    """Returns the plain TCP or Unix transport under `transport`, which may be TLS and must not be closed yet."""
    under_tls = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    return transport if under_tls is None else under_tls


def untie_transport(transport: asyncio.BaseTransport | None) -> None:
    """Breaks the reference cycle of a transport whose connection is aborted or lost."""
    own = getattr(transport, "__dict__", {})
    for name in _OWN_METHODS:
        own.pop(name, None)


def untie_unmatched(request: web.BaseRequest) -> None:
    """Breaks the reference cycle of an answered request that matched no route.

    The route made for it alone keeps a method of itself and its exception, whose traceback keeps the request.
    """
    match = getattr(request, "_match_info", None)
    if isinstance(match, MatchInfoError):
        match.http_exception.with_traceback(None)
        match.route._handler = None  # type: ignore[assignment]


def untie_connection(connection: web.RequestHandler) -> None:
    """Drops the reference of a lost connection to its WebSocket."""
    if hasattr(connection, "_data_received_cb"):
        connection._data_received_cb = None


def untie_socket(socket: web.WebSocketResponse) -> None:
    """Breaks the reference cycle of a WebSocket whose handler has ended.

    aiohttp keeps the error that has ended it, whose traceback keeps the socket, and a timer of the next ping.
    """
    internals: Any = socket
    internals._exception = None
    internals._heartbeat = None  # so that what still comes does not set the timer again
    if hasattr(internals, "_cancel_heartbeat"):
        internals._cancel_heartbeat()


def request_in_progress(connection: web.RequestHandler) -> web.BaseRequest | None:
    """The request that a connection's handler is answering."""
    return connection._current_request


def end_refused_body(connection: web.RequestHandler, request: web.BaseRequest) -> None:
    """Passes the parser's error on to the reader of an invalid body, who would wait for its end until the deadline."""
    if not connection._messages or request.content.is_eof():
        return
    refusal = connection._messages[-1][0]
    if isinstance(refusal, _ErrInfo) and request.content.exception() is None:
        request.content.set_exception(web.RequestPayloadError(refusal.message), refusal.exc)


def untie_error(error: BaseException | None) -> None:
    """Removes the tracebacks of a reported error and of its causes, because they form a reference cycle with it."""
    found, known = [error], set[int]()
    while found:
        cause = found.pop()
        if cause is not None and id(cause) not in known:
            known.add(id(cause))
            found += [cause.__cause__, cause.__context__]
            cause.with_traceback(None)
