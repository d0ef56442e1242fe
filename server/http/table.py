"""Every generating route."""

from __future__ import annotations

from server.routes.chat import CHAT_COMPLETIONS
from server.routes.completions import COMPLETIONS
from server.routes.messages.call import MESSAGES
from server.routes.route import Route
from server.routes.stream import STREAM

ROUTES: tuple[Route, ...] = (COMPLETIONS, CHAT_COMPLETIONS, MESSAGES, STREAM)
