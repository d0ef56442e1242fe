"""Cycles of references in which aiohttp and asyncio leave what has ended.

Only a garbage collection frees a cycle, and it stops all threads while it does so. A crowd of short connections left
a hundred thousand objects in a few seconds; freeing them held the interpreter for up to 147 ms. Without cycles each
object goes when its last user does.

What keeps these cycles are private attributes. Where another version has none of that name, nothing happens.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.web_urldispatcher import MatchInfoError

# Methods of a socket's transport that it keeps itself; the second one is there from Python 3.12 on.
_OWN_METHODS = ("_read_ready_cb", "_write_ready")


def bare_transport(transport: asyncio.BaseTransport) -> asyncio.BaseTransport:
    """The transport of the socket: `transport`, or what TLS is spoken over. It must not be closed yet."""
    under_tls = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    return transport if under_tls is None else under_tls


def untie_transport(transport: asyncio.BaseTransport | None) -> None:
    """Unties the transport of a socket that neither reads nor writes any more, because it is aborted or lost."""
    own = getattr(transport, "__dict__", {})
    for name in _OWN_METHODS:
        own.pop(name, None)


def untie_unmatched(request: web.BaseRequest) -> None:
    """Unties a request that has been answered, if no route fitted it.

    Its place is then taken by a route that is made for it alone, which keeps a method of itself and the exception that
    it raises. The traceback of that exception keeps the request.
    """
    match = getattr(request, "_match_info", None)
    if isinstance(match, MatchInfoError):
        match.http_exception.with_traceback(None)
        match.route._handler = None  # type: ignore[assignment]


def untie_error(error: BaseException | None) -> None:
    """Unties an error that has been told, and those that caused it: a traceback keeps the variables of functions, and
    they keep the error.
    """
    found, known = [error], set[int]()
    while found:
        cause = found.pop()
        if cause is not None and id(cause) not in known:
            known.add(id(cause))
            found += [cause.__cause__, cause.__context__]
            cause.with_traceback(None)
