"""Delivery of the engine thread's events to their streams, with one wake-up of the asyncio loop for all that wait."""

import asyncio
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from engine.schedule.request_event import NewTokens, StepEvent
from engine.token_stream import Outbox


class LoopSignal:
    """Runs one function in the thread of an asyncio loop after each signal of another thread; signals may be merged.

    It costs the thread that signals a third of `call_soon_threadsafe`, and the loop two thirds, for every token.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
        """Called in the loop's thread. Raises OSError or NotImplementedError where the system or the loop lacks it."""
        if sys.platform != "linux":
            raise NotImplementedError("only Linux has eventfd")
        self._loop = loop
        self._function = function
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Closed when neither the loop nor a thread that might still signal knows this object any more, because the
        # system may give the number to a client's connection at once.
        weakref.finalize(self, os.close, self._fd).atexit = False
        loop.add_reader(self._fd, self._run)

    def send(self) -> bool:
        """Signals, in any thread; returns False if the loop is closed."""
        if sys.platform == "linux" and not self._loop.is_closed():
            os.eventfd_write(self._fd, 1)
            return True
        return False

    def close(self) -> None:
        """Runs the function no more. Called in the loop's thread; idempotent."""
        self._loop.remove_reader(self._fd)

    def _run(self) -> None:
        if sys.platform == "linux":
            os.eventfd_read(self._fd)
        self._function()


class Delivery:
    """Carries events from the engine thread to the asyncio thread.

    `wake` schedules a function in the asyncio thread from any thread; there, `on_end` is called with the id of each
    request after its last event.
    """

    def __init__(self, wake: Callable[[Callable[[], None]], None], on_end: Callable[[str], object]) -> None:
        self._wake = wake
        self._on_end = on_end
        self._turns: deque[Sequence[StepEvent]] = deque()  # that are published and not delivered
        self._is_waking = False  # a call that will deliver them is on its way

    def publish(self, events: Sequence[StepEvent]) -> None:
        """Sends the events of one turn of the engine. Called in the engine thread."""
        self._turns.append(events)
        if not self._is_waking:  # else the call on its way finds these events too, because it resets this first
            self._is_waking = True
            self._wake(self.deliver)

    def deliver(self) -> None:
        """Gives a turn's events to their streams, then flushes each outbox that has some, in one write per client."""
        self._is_waking = False
        outboxes: set[Outbox] = set()
        for _ in range(len(self._turns)):  # no more than these: an engine that is faster than this must not hold it up
            for event in self._turns.popleft():
                if isinstance(event, NewTokens):
                    for request, token in zip(event.requests, event.tokens, strict=True):
                        outbox = request.mailbox.put_tokens(request, (token,))
                        if outbox is not None:
                            outboxes.add(outbox)
                    continue
                outbox = event.request.mailbox.put(event)
                if outbox is not None:
                    outboxes.add(outbox)
                if event.finish_reason is not None:
                    self._on_end(event.request.request_id)
        for outbox in outboxes:
            outbox.flush()
