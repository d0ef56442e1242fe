"""Structured logs on standard error; each event has the id of its request."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from structlog.typing import Processor

from server.protocol.errors import ApiError, to_api_error

REQUEST_ID_HEADER = "X-Request-Id"

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

log: structlog.stdlib.BoundLogger = structlog.get_logger("eagre")


def set_up_logs(level: str, log_format: str, replica: str | None = None) -> None:
    """Configures structlog, and routes warnings of the standard library's loggers through it.

    `replica` is the name of this server among others, which every event then has.
    """

    def add_replica(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event.setdefault("replica", replica)
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([] if replica is None else [add_replica]),
    ]
    # Tracebacks without local variables, among which are prompts and answers.
    frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    # Named, because structlog prefers rich's tracebacks, which show local variables, where rich is installed.
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    renderers: list[Processor] = (
        [structlog.processors.format_exc_info, _escape, console]
        if log_format == "console"
        else [structlog.processors.ExceptionRenderer(frames), structlog.processors.JSONRenderer()]
    )
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(level=max(threshold, logging.WARNING), handlers=[handler], force=True)
    logging.getLogger("aiohttp.server").addFilter(_is_our_failure)
    logging.getLogger("aiohttp.websocket").addFilter(_has_no_protocols)


def _escape(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Escapes what clients may have sent: control characters, and those that change a text's direction."""
    for name, value in event.items():
        if name not in ("_record", "_from_structlog"):
            text = value if isinstance(value, str) else repr(value)
            unsafe = _UNSAFE_IN_LINES if name in ("exception", "stack") else _UNSAFE
            if unsafe.search(text):
                event[name] = unsafe.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return event


def _is_our_failure(record: logging.LogRecord) -> bool:
    """False for failures that a client causes by leaving or by sending invalid HTTP, which need no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (ConnectionError, HttpProcessingError, web.RequestPayloadError))


def _has_no_protocols(record: logging.LogRecord) -> bool:
    """False for aiohttp's list of the subprotocols that a client asked for, one of which may carry its key."""
    return "protocols" not in str(record.msg)


def note(**fields: object) -> None:
    """Adds fields to every later event of this request, including the access event."""
    structlog.contextvars.bind_contextvars(**fields)


def failure_of(error: Exception, event: str) -> ApiError:
    """The client's view of `error`. Must be called where it is handled.

    An unexpected error is logged as `event`, with its traceback; an ApiError was logged where it was raised. The caller
    must not keep the result, because its traceback may keep the caller's variables alive.
    """
    api_error = to_api_error(error)
    if api_error is not error and api_error.status == 500:
        log.exception(event)
    return api_error
