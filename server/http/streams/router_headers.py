"""Headers between a router and its servers: the id of a resumable stream, what a router adds to its requests, and what
tells it how to undo one.
"""

import hmac
import re
from typing import NamedTuple

from aiohttp import web

from server.http.entry.served import SERVED
from server.protocol.errors import ApiError

STREAM_HEADER = "X-Eagre-Stream"  # by which id a stream can be resumed
NOT_HELD = "none"  # in place of the id: the server had no room for a resumable stream
FRONT_KEY_HEADER = "X-Eagre-Front"
AFTER_HEADER = "X-Eagre-After"
KEYED_HEADER = "X-Eagre-Keyed"  # the router wants keys of its clients, whether the server wants some or not
# Of answers to administrators: the percent-encoded path of the adapter whose name a new one has taken.
REPLACED_HEADER = "X-Eagre-Replaced"
# In lower case. A router passes none of them on from its clients.
FRONT_HEADERS = frozenset(name.lower() for name in (FRONT_KEY_HEADER, AFTER_HEADER, STREAM_HEADER, KEYED_HEADER))

_STREAM_ID = re.compile(r"[0-9a-f]{32}")


class RoutedStream(NamedTuple):
    """The stream that a router asks for; if this server is lost, the router resumes it on another."""

    stream_id: str
    after: str | None  # the position of the last event that the client has; None: it has none


def read_routed_stream(request: web.Request) -> RoutedStream | None:
    """Reads a router's stream headers, None for any other client's; raises ApiError for a bad id."""
    wanted, stream_id = request.app[SERVED].settings.front_key, request.headers.get(STREAM_HEADER)
    shown = request.headers.get(FRONT_KEY_HEADER)
    if wanted is None or shown is None or stream_id is None or not hmac.compare_digest(_bytes(wanted), _bytes(shown)):
        return None
    if not _STREAM_ID.fullmatch(stream_id):
        raise ApiError(f"{STREAM_HEADER} must be 32 hexadecimal digits", param=STREAM_HEADER, code="invalid_value")
    return RoutedStream(stream_id, request.headers.get(AFTER_HEADER))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
