"""Which web pages may open a socket to this server."""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from server.wire.errors import ApiError, shorten


def check_origin(request: web.Request, allowed: tuple[str, ...]) -> None:
    """Any web page may try to open a socket to this machine; only our own and the allowed ones may.

    Raises:
        ApiError: 403 for any other.
    """
    origin = request.headers.get("Origin")
    if origin is None or origin in allowed:
        return
    try:
        is_own = urlsplit(origin).netloc == request.host
    except ValueError:  # it is no address at all
        is_own = False
    if not is_own:
        raise ApiError(
            f"the origin {shorten(origin)} may not open a socket here; see --allowed-origins",
            status=403,
            error_type="permission_error",
            code="origin_not_allowed",
        )
