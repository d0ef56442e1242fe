"""Cycles of references in which aiohttp and asyncio leave what has ended.

Only a garbage collection frees a cycle, and it stops all threads while it does so. A crowd of short connections left
a hundred thousand objects in a few seconds; freeing them held the interpreter for up to 147 ms. Without cycles each
object goes when its last user does.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.web_urldispatcher import MatchInfoError


def untie_transport(transport: asyncio.BaseTransport | None) -> None:
    """Unties a transport that is closed: asyncio's own for sockets keeps a method of itself, which it calls to read."""
    if transport is not None and hasattr(transport, "_read_ready_cb"):
        transport._read_ready_cb = None


def untie_unmatched(request: web.BaseRequest) -> None:
    """Unties a request that has been answered, if no route fitted it.

    Its place is then taken by a route that is made for it alone, which keeps a method of itself and the exception that
    it raises. The traceback of that exception keeps the request.
    """
    match = request.match_info if isinstance(request, web.Request) and request._match_info is not None else None
    if isinstance(match, MatchInfoError):
        match.http_exception.with_traceback(None)
        match.route._handler = None  # type: ignore[assignment]


def untie_error(error: BaseException | None) -> None:
    """Unties an error that has been told: its traceback keeps the variables of functions, and they keep the error."""
    if error is not None:
        error.with_traceback(None)
