"""An error at the end of a stream, in the form that the clients of its route expect."""

from __future__ import annotations

import re

from aiohttp import web

from server.api.openai.chat import CHAT_COMPLETIONS
from server.api.responses import events
from server.api.route import BodyRoute
from server.http.entry.access_log import REQUEST_ID
from server.http.responses.routes import RESPONSES
from server.http.table import ROUTES
from server.protocol.errors import ApiError

_ROUTES = {route.path: route for route in ROUTES if isinstance(route, BodyRoute)}
_NUMBER = re.compile(rb'"sequence_number":(\d+)')


def error_event(request: web.Request, path: str, error: ApiError, last: bytes = b"") -> bytes:
    """Args:
    path: of the route by which the stream was begun.
    last: what the client has got last; events of responses are numbered.
    """
    if path.startswith(RESPONSES):
        numbers = _NUMBER.findall(last)
        return events.error_event(error, int(numbers[-1]) + 1 if numbers else 0)
    return _ROUTES.get(path, CHAT_COMPLETIONS).encode_error_event(error, request[REQUEST_ID])
