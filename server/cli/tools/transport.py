"""The interface of the ways to an MCP server."""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

import orjson

from server.protocol.json_limits import is_deeper

PROTOCOL = "2025-06-18"
MAX_ANSWER_BYTES = 8 << 20
MAX_REASON = 500  # characters of an error that a server gives
MAX_DEPTH = 100  # of lists and objects in a message; templates and grammars of the server take no more


class McpError(RuntimeError):
    """An MCP server refuses a request, or breaks the protocol; the message says how, for the user and the model."""


class SessionEnded(McpError):
    """The server does not know the session any more; the request was not processed."""


class Transport(Protocol):
    """A way to one MCP server; its methods raise McpError."""

    async def open(self) -> None:
        """Begins a new connection, whose first message is `initialize`."""

    def set_protocol(self, version: str) -> None:
        """Takes the version of the protocol that the server has chosen."""

    def request(self, message: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Sends a request and yields the messages that come for it, until the caller has its answer."""

    async def notify(self, message: dict[str, Any]) -> None:
        """Sends a message that has no answer."""

    async def close(self) -> None: ...


def shortened(reason: str) -> str:
    """What a server says of a failure, of a length that a terminal and a model can take."""
    return reason if len(reason) <= MAX_REASON else reason[:MAX_REASON] + "…"


def messages_of(data: bytes) -> list[dict[str, Any]]:
    """The JSON-RPC messages in `data`, one or a batch; none where it is no JSON, or nested too deeply."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return []
    found = found if isinstance(found, list) else [found]
    return [message for message in found if isinstance(message, dict) and not is_deeper(message, MAX_DEPTH)]
