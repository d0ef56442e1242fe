"""W3C Trace Context (https://www.w3.org/TR/trace-context/) of the request that the running task handles."""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Any, NamedTuple

from server.startup.logs import note

TRACE_HEADER = "X-Trace-Id"  # of answers

# Later versions may have more parts behind these; version ff is none, and an id of zeros is none.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_MAX_LENGTH = 512  # characters of either; what is longer is none


class TraceContext(NamedTuple):
    """The headers `traceparent` and `tracestate` of a request."""

    trace_id: str  # 32 hexadecimal digits
    traceparent: str
    tracestate: str | None = None


_CALLER: ContextVar[TraceContext | None] = ContextVar("caller", default=None)
_TRACE_ID: ContextVar[str | None] = ContextVar("trace_id", default=None)


def take_over(traceparent: Any, tracestate: Any = None) -> None:
    """Sets the trace context of the running task, unless it is invalid, and adds its id to the task's logs."""
    caller = None
    if isinstance(traceparent, str) and len(traceparent) <= _MAX_LENGTH:
        traceparent = traceparent.strip()
        found = _TRACEPARENT.fullmatch(traceparent)
        if found is not None and (found[2] is None or not traceparent.startswith("00")):
            state = tracestate if isinstance(tracestate, str) and len(tracestate) <= _MAX_LENGTH else None
            caller = TraceContext(found[1], traceparent, state)
    _CALLER.set(caller)
    set_trace_id(None if caller is None else caller.trace_id)


def take_from(body: dict[str, Any]) -> None:
    """`take_over` for a message of a WebSocket, which loses both fields; without them the handshake's context holds."""
    traceparent, tracestate = body.pop("traceparent", None), body.pop("tracestate", None)
    if traceparent is not None:
        take_over(traceparent, tracestate)


def caller() -> TraceContext | None:
    """The trace context that came with the request; None without a valid one."""
    return _CALLER.get()


def trace_id() -> str | None:
    """The trace id of the running task's request; None where it is not traced."""
    return _TRACE_ID.get()


def set_trace_id(value: str | None) -> None:
    """Sets the trace id of the running task's request, for its response and its logs."""
    _TRACE_ID.set(value)
    if value is not None:
        note(trace_id=value)
