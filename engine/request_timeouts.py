"""Deadlines of requests: how they follow from the configuration, and their timers on the asyncio loop."""

import asyncio
import time

from engine.interface.config import EngineConfig
from engine.interface.types import FinishReason
from engine.schedule.request import Request
from engine.token_stream import TokenStream

_GRACE_SECONDS = 0.5  # after a deadline, in which the engine may still end the request itself


class RequestTimeouts:
    """Computes deadlines, which the engine checks between steps, and ends streams whose step does not end."""

    def __init__(self, config: EngineConfig) -> None:
        self._request_timeout = config.request_timeout
        self._queue_timeout = config.queue_timeout

    def deadlines(self, timeout: float | None) -> tuple[float | None, float | None]:
        """The deadlines of a request and of its wait in the queue, in seconds on the monotonic clock; None: none."""
        now = time.monotonic()
        timeouts = [seconds for seconds in (timeout, self._request_timeout) if seconds is not None]
        return (
            now + min(timeouts) if timeouts else None,
            None if self._queue_timeout is None else now + self._queue_timeout,
        )

    def watch(self, loop: asyncio.AbstractEventLoop, stream: TokenStream, request: Request) -> None:
        """Starts the timers of a request; they end with its stream."""
        for deadline, only_queued in ((request.deadline, False), (request.queue_deadline, True)):
            if deadline is not None:
                seconds = deadline - time.monotonic() + _GRACE_SECONDS
                stream.timers.append(loop.call_later(seconds, _expire, stream, request, only_queued))


def _expire(stream: TokenStream, request: Request, only_queued: bool) -> None:
    if not (only_queued and request.was_admitted):
        stream.abort()
        stream.end(FinishReason.TIMEOUT, None)
