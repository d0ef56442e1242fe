"""The engine thread as the asyncio side sees it: start, delivery of events, failure and shutdown."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from engine.delivery import Delivery, LoopSignal
from engine.engine import Engine
from engine.interface.background import run_in_background
from engine.interface.types import EngineError, FinishReason
from engine.lifecycle import Lifecycle
from engine.loop import EngineLoop, Shutdown
from engine.token_stream import TokenStream
from engine.watchdog import Watchdog

JOIN_SECONDS = 5.0  # the wait for the engine thread to end; a hung thread must not keep the process
_STORE_SECONDS = 3.0  # the wait for pages that are still to be stored in a folder


class EngineThread:
    """Runs an engine's loop in its thread and owns the streams that its events go to."""

    def __init__(self, engine: Engine) -> None:
        self.streams: dict[str, TokenStream] = {}  # by request id, until their last event
        self.is_closed = False  # shut down or failed
        self._engine = engine
        self._asyncio_loop: asyncio.AbstractEventLoop | None = None
        self._failure: asyncio.Future[None] | None = None
        self._delivery = Delivery(self._wake, self._forget)
        self._signal: LoopSignal | None = None  # None: not started, or there is none
        self.loop: EngineLoop = engine.make_loop(self._delivery.publish, self._on_failure)
        self.lifecycle = Lifecycle(engine, self.loop)
        self._watchdog = Watchdog(self.loop, engine.config.stall_timeout, self._fail)

    def start(self, asyncio_loop: asyncio.AbstractEventLoop) -> None:
        """As `EngineClient.start`."""
        self._asyncio_loop = asyncio_loop
        self._failure = asyncio_loop.create_future()
        self._engine.watch_hosts(self._on_failure)  # first: where it raises, no thread is left behind
        self.loop.start()
        with suppress(OSError, NotImplementedError):  # the system, or this kind of loop, has none
            self._signal = LoopSignal(asyncio_loop, self._delivery.deliver)
        self._watchdog.start(asyncio_loop)

    @property
    def asyncio_loop(self) -> asyncio.AbstractEventLoop:
        """The loop in which events are delivered; raises EngineError."""
        if self.is_closed or self._asyncio_loop is None or not self.loop.is_running:
            raise EngineError("the engine is not running")
        return self._asyncio_loop

    @property
    def is_alive(self) -> bool:
        """Whether the loop turns, or runs an operator's call, however long that takes."""
        # The call is tested first, because the heartbeat is renewed before `is_in_call` is reset.
        age = 0.0 if self.loop.is_in_call else time.monotonic() - self.loop.heartbeat
        return not self.is_closed and self.loop.is_running and age < self._engine.config.stall_timeout

    @property
    def failure(self) -> asyncio.Future[None]:
        """As `EngineClient.failure`."""
        if self._failure is None:
            raise EngineError("the engine was not started")
        return self._failure

    def shutdown(self, join_seconds: float) -> None:
        """As `EngineClient.shutdown`."""
        if not self.is_closed:
            self._begin_shutdown()
            self._end_threads(join_seconds)
            self._end_shutdown()

    async def shutdown_in_background(self) -> None:
        """As `shutdown`, but the asyncio loop runs while the engine's threads end."""
        if not self.is_closed:
            self._begin_shutdown()
            try:
                await run_in_background(partial(self._end_threads, JOIN_SECONDS), name="eagre-shutdown")
            finally:
                self._end_shutdown()

    def _begin_shutdown(self) -> None:
        self.is_closed = True
        self._watchdog.stop()
        self.loop.post(Shutdown())

    def _end_threads(self, join_seconds: float) -> None:
        """Called in any thread; the rest of a shutdown belongs to the asyncio thread."""
        self.loop.join(join_seconds)
        self._engine.close(store_seconds=_STORE_SECONDS)

    def _end_shutdown(self) -> None:
        self.lifecycle.close("the engine is shut down")
        if self._asyncio_loop is not None and self._asyncio_loop.is_running():
            self._asyncio_loop.call_soon(self._end_delivery, FinishReason.ABORT, None)
        else:
            self._end_streams(FinishReason.ABORT, None)
        if self._failure is not None and not self._failure.done():
            self._failure.cancel()

    # ---------------------------------------------------------------- called in the engine thread

    def _on_failure(self, error: BaseException) -> None:
        self._call(partial(self._fail, error))

    def _call(self, callback: Callable[[], None]) -> None:
        assert self._asyncio_loop is not None
        try:
            self._asyncio_loop.call_soon_threadsafe(callback)
        except RuntimeError:
            self.loop.post(Shutdown())  # the asyncio loop is closed, so no events can be delivered any more

    def _wake(self, deliver: Callable[[], None]) -> None:
        if self._signal is None or not self._signal.send():
            self._call(deliver)

    # ---------------------------------------------------------------- called in the asyncio thread

    def _forget(self, request_id: str) -> None:
        self.streams.pop(request_id, None)

    def _fail(self, error: BaseException) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._watchdog.stop()
        self.lifecycle.close("the engine has failed")
        self._end_delivery(FinishReason.ERROR, f"the engine failed: {type(error).__name__}: {error}")
        self._engine.close(failure=f"{type(error).__name__}: {error}")
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _end_delivery(self, reason: FinishReason, error: str | None) -> None:
        """Delivers what the engine thread has published, and then ends the streams that have not ended."""
        try:
            self._delivery.deliver()
        finally:
            self._end_streams(reason, error)

    def _end_streams(self, reason: FinishReason, error: str | None) -> None:
        if self._signal is not None:
            self._signal.close()
        for stream in self.streams.values():
            stream.end(reason, error)
        self.streams.clear()
