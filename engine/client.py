"""The client of the engine: what the asyncio side calls to submit requests and to read their tokens."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from engine.delivery import Delivery
from engine.engine import Engine
from engine.footprint import footprint, memory
from engine.interface.background import run_in_background
from engine.interface.config import EngineConfig, ModelInfo
from engine.interface.footprint import MachineMemory, ModelFootprint
from engine.interface.snapshot import EngineSnapshot
from engine.interface.types import EngineError, EngineStats, FinishReason, Pooling, Progress, QueueFull, TraceEvent
from engine.lifecycle import Lifecycle
from engine.loop import Abort, EngineLoop, Shutdown
from engine.models import open_model
from engine.schedule.request import Request
from engine.snapshot import take_snapshot
from engine.token_stream import Outbox, TokenStream
from engine.watchdog import Watchdog
from sampling.host.grammar import TokenMatcher
from sampling.host.params import InvalidParameter, SamplingParams

__all__ = ["EngineClient", "Outbox", "TokenStream"]  # the server knows streams by way of the client

_JOIN_SECONDS = 5.0  # the wait for the engine thread to end; a hung thread must not keep the process
_STORE_SECONDS = 3.0  # the wait for pages that are still to be stored in a folder
_GRACE_SECONDS = 0.5  # the time after a deadline in which the engine may still keep it itself


class EngineClient:
    """Submits requests to the engine thread. All its methods are called from one asyncio loop."""

    def __init__(self, engine: Engine) -> None:
        self.model_info: ModelInfo = engine.model_info
        self._engine = engine
        self._config = engine.config
        self._seeds = random.Random(engine.config.seed)
        self._streams: dict[str, TokenStream] = {}
        # These counts go on from earlier clients of this engine, whose requests have all left the queue.
        self._num_submitted = engine.scheduler.counters.num_dequeued
        self._num_submitted_tokens = engine.scheduler.counters.num_dequeued_tokens
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: asyncio.Future[None] | None = None
        self._is_closed = False
        self._delivery = Delivery(self._call, self._forget)
        self._engine_loop: EngineLoop = engine.make_loop(self._delivery.publish, self._on_failure)
        self._watchdog = Watchdog(self._engine_loop, engine.config.stall_timeout, self._fail)
        self.lifecycle = Lifecycle(engine, self._engine_loop)

    @classmethod
    def load(cls, model_path: Path, config: EngineConfig, progress: Progress) -> EngineClient:
        """Reads the weights and compiles every shape. Blocking: call it in a worker thread.

        Raises:
            ModelError: the model cannot be served.
            ValueError: the configuration does not fit the model or the machine.
        """
        if config.host_index:
            raise ValueError(f"host_index is {config.host_index}; only host 0 serves, and the others follow it")
        return cls(Engine.load(model_path, config, progress))

    @staticmethod
    def follow(
        model_path: Path, config: EngineConfig, progress: Progress, on_lost: Callable[[BaseException], None]
    ) -> None:
        """Computes beside the leader of several hosts, without a client, until the leader ends. Blocking.

        Args:
            on_lost: called by any thread when the leader is lost. The call of `follow` may not return then, because it
                may wait for a device, and the process is to end.

        Raises:
            ModelError: the model cannot be served.
            ValueError: the configuration does not fit the model, the machine or the leader's.
            HostLost: the leader is lost or has failed.
        """
        Engine.load(model_path, config, progress).follow(on_lost)

    @staticmethod
    def refuse_unserved(model_path: Path) -> None:
        """Looks at a model's architecture alone.

        Raises:
            ModelError: it is not served, or the file cannot be read.
        """
        open_model.refuse_unserved(model_path)

    @staticmethod
    def footprint(model_path: Path, config: EngineConfig) -> ModelFootprint:
        """What the model would take of memory; only the headers of its files are read.

        Raises:
            ModelError: the model cannot be served.
            ValueError: the configuration does not fit the model or the machine.
        """
        return footprint(model_path, config)

    @staticmethod
    def machine_memory() -> MachineMemory:
        """The memory that there is at this moment."""
        return memory()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the engine thread, whose events are delivered in `loop`.

        Raises:
            EngineError: the hosts that computed the model with this one have been let go by an earlier client.
        """
        self._loop = loop
        self._failure = loop.create_future()
        self._engine.watch_hosts(self._on_failure)  # first: where it raises, no thread is left behind
        self._engine_loop.start()
        self._watchdog.start(loop)

    def submit(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        timeout: float | None = None,
        matcher: TokenMatcher | None = None,
        tenant: str = "",
        num_prompt_output_tokens: int = 0,
        pooling: Pooling | None = None,
        wants_progress: bool = False,
        is_checked: bool = False,
    ) -> TokenStream:
        """Queues one request and returns at once.

        Args:
            request_id: must differ from those of all unfinished requests; chosen here if None.
            priority: requests of lower priority numbers run first, and equal ones in order of arrival.
            cache_salt: only requests with the same salt share prefixes.
            timeout: seconds from now, after which the request ends with TIMEOUT. The configured
                request_timeout is an upper limit and the default.
            matcher: the matcher of the grammar that the output must follow, in its initial state. The
                engine owns it from now on.
            tenant: whose request it is; tenants have fair shares of the engine.
            num_prompt_output_tokens: how many tokens at the end of the prompt count as output, so that an answer that
                was cut off goes on as if it never had been: for penalties, min_tokens, max_tokens and all the rest.
                A matcher must have accepted them.
            pooling: an embedding is made of all tokens of the prompt but the last, by way of `TokenEvent.pooled`.
            wants_progress: until the first token comes, the stream has events that tell how the request waits for it.
            is_checked: the prompt has passed `check_prompt` and the parameters `check_token_ids`; they are not
                checked again, which matters where one prompt gets many answers.

        Raises:
            InvalidParameter: the two checks refuse the request, or the request_id is in use.
            QueueFull: the queue is at its limit.
            EngineError: the engine has failed, was shut down or was not started.
        """
        if self._is_closed or not self._engine_loop.is_running:
            raise EngineError("the engine is not running")
        if not is_checked:
            params.check_token_ids(self.model_info.vocab_size)
            self.check_prompt(prompt_token_ids, params.max_tokens, num_prompt_output_tokens=num_prompt_output_tokens)
        self._check_queue(len(prompt_token_ids))
        arrival = self._num_submitted
        if request_id is None:
            request_id = f"request-{arrival}"
        if request_id in self._streams:
            raise InvalidParameter("request_id", f"request_id {request_id!r} is in use by a running request")
        seed = self._seeds.getrandbits(64) if params.seed is None else params.seed
        max_length = len(prompt_token_ids) - num_prompt_output_tokens + params.max_tokens
        max_length = min(max_length, self.model_info.max_model_len)
        request = Request(
            request_id, list(prompt_token_ids), params, seed, max_length, priority, arrival, matcher=matcher,
            num_prompt_output_tokens=num_prompt_output_tokens, pooling=pooling, wants_progress=wants_progress,
        )  # fmt: skip
        request.cache_salt = cache_salt
        request.tenant = tenant
        request.submitted_at = time.perf_counter()
        self._set_deadlines(request, timeout)
        stream = TokenStream(request, self._abort)
        request.mailbox = stream
        self._streams[request_id] = stream
        self._num_submitted += 1
        self._num_submitted_tokens += len(prompt_token_ids)
        self._engine_loop.post(request)
        self._watch_deadlines(stream, request)
        return stream

    async def embed(
        self, prompt_token_ids: Sequence[int], pooling: Pooling, *, priority: int = 0, tenant: str = ""
    ) -> np.ndarray:
        """The embedding of a prompt, float32[hidden], in the model's own length.

        It is a request like any other: it waits, is preempted, and ends with its caller. Two tokens of the context
        are left for the token that stands behind the prompt and for the one that every request samples.

        Raises:
            InvalidParameter: the prompt is empty, has a token id out of range, or is too long for the model.
            QueueFull: the queue is at its limit.
            EngineError: the engine has failed, was shut down or was not started, or the request has timed out.
        """
        behind = prompt_token_ids[-1:]  # any token: what stands behind does not change what is pooled
        stream = self.submit(
            [*prompt_token_ids, *behind], SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
            priority=priority, tenant=tenant, pooling=pooling,
        )  # fmt: skip
        try:
            async for event in stream:
                if event.pooled is not None:
                    return event.pooled
        finally:
            stream.abort()
        raise EngineError(event.error or f"the request ended without an embedding: {event.finish_reason}")

    def abort(self, request_id: str) -> bool:
        """Ends the request with this id; returns False if there is no unfinished one."""
        stream = self._streams.get(request_id)
        if stream is None:
            return False
        stream.abort()
        return True

    def check_prompt(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        max_tokens_parameter: str = "max_tokens",
        *,
        num_prompt_output_tokens: int = 0,
    ) -> None:
        """Whether the model can take this prompt and `max_tokens` of output after it.

        Args:
            max_tokens_parameter: what the caller calls `max_tokens`.
            num_prompt_output_tokens: how many tokens of the prompt count as output, and so among `max_tokens`.

        Raises:
            InvalidParameter: the prompt is empty, has a token id out of range, or is too long for
                the model, alone or with max_tokens; or too many of its tokens count as output.
        """
        limit, vocab_size, num_tokens = self.model_info.max_model_len, self.model_info.vocab_size, len(prompt_token_ids)
        if num_tokens >= limit:
            raise InvalidParameter(
                "prompt",
                f"the prompt has {num_tokens} tokens; the model's context is {limit} tokens, "
                "prompt and output together",
            )
        if num_tokens - num_prompt_output_tokens + max_tokens > limit:
            raise InvalidParameter(
                max_tokens_parameter,
                f"{max_tokens_parameter} is {max_tokens} and the prompt has {num_tokens} tokens; "
                f"the model's context is {limit} tokens, prompt and output together",
            )
        if num_tokens == 0:
            raise InvalidParameter("prompt", "the prompt is empty; it must have at least 1 token")
        if num_prompt_output_tokens:
            _check_output(num_prompt_output_tokens, num_tokens, max_tokens, max_tokens_parameter)
        lowest, highest = min(prompt_token_ids), max(prompt_token_ids)
        if lowest < 0 or highest >= vocab_size:
            wrong = lowest if lowest < 0 else highest
            raise InvalidParameter(
                "prompt", f"the prompt has token id {wrong}; token ids must be from 0 to {vocab_size - 1}"
            )

    def stats(self) -> EngineStats:
        """Counters and gauges of this moment."""
        return replace(self._engine.stats(), num_waiting_tokens=self._num_queued_tokens())

    def snapshot(self) -> EngineSnapshot:
        """What the engine does at this moment; its time grows with the number of pages and of running requests."""
        return take_snapshot(self._engine.scheduler, self._engine_loop.timeline, self.stats())

    def trace(self, num_steps: int | None = None) -> list[TraceEvent]:
        """What device and host did in the last steps, as events for Perfetto; at most `num_steps` steps."""
        return self._engine_loop.timeline.export_trace(num_steps)

    @property
    def is_alive(self) -> bool:
        """Whether the engine thread turns, or runs a call of an operator, however long that takes."""
        # The call is tested first, because the heartbeat is renewed before `is_in_call` is reset.
        age = 0.0 if self._engine_loop.is_in_call else time.monotonic() - self._engine_loop.heartbeat
        return not self._is_closed and self._engine_loop.is_running and age < self._config.stall_timeout

    @property
    def failure(self) -> asyncio.Future[None]:
        """A future that gets the exception that ended the engine. It never has a result.

        Raises:
            EngineError: the engine was not started.
        """
        if self._failure is None:
            raise EngineError("the engine was not started")
        return self._failure

    def end_streams(self, error: str | None = None) -> None:
        """Ends every stream with an ABORT event at once, also where the engine does not turn.

        Args:
            error: why, if that is no wish of an operator; the event is an ERROR then.
        """
        for stream in self._streams.values():
            stream.abort()
            stream.end(FinishReason.ABORT if error is None else FinishReason.ERROR, error)

    def shutdown(self, join_seconds: float = _JOIN_SECONDS) -> None:
        """Ends every request with an ABORT event, stops the thread and joins it. Idempotent.

        Args:
            join_seconds: how long to wait for the step that the thread is in, at most.
        """
        if self._is_closed:
            return
        self._begin_shutdown()
        self._end_threads(join_seconds)
        self._end_shutdown()

    async def shutdown_in_background(self) -> None:
        """As `shutdown`, but the asyncio loop turns while the threads of the engine end."""
        if self._is_closed:
            return
        self._begin_shutdown()
        try:
            await run_in_background(partial(self._end_threads, _JOIN_SECONDS), name="eagre-shutdown")
        finally:
            self._end_shutdown()

    def _begin_shutdown(self) -> None:
        self._is_closed = True
        self._watchdog.stop()
        self._engine_loop.post(Shutdown())

    def _end_threads(self, join_seconds: float) -> None:
        """Called in any thread; the rest of a shutdown belongs to the asyncio thread."""
        self._engine_loop.join(join_seconds)
        self._engine.close(store_seconds=_STORE_SECONDS)

    def _end_shutdown(self) -> None:
        self.lifecycle.close("the engine is shut down")
        end = partial(self._end_streams, FinishReason.ABORT, None)
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon(end)  # after the events that the thread has published
        else:
            end()
        if self._failure is not None and not self._failure.done():
            self._failure.cancel()

    def _set_deadlines(self, request: Request, timeout: float | None) -> None:
        now, config = time.monotonic(), self._config
        timeouts = [seconds for seconds in (timeout, config.request_timeout) if seconds is not None]
        if timeouts:
            request.deadline = now + min(timeouts)
        if config.queue_timeout is not None:
            request.queue_deadline = now + config.queue_timeout

    def _watch_deadlines(self, stream: TokenStream, request: Request) -> None:
        """The engine keeps its deadlines between steps; where a step does not end, this thread keeps them."""
        deadlines = [(request.deadline, False), (request.queue_deadline, True)]
        for deadline, only_queued in deadlines:
            if deadline is not None and self._loop is not None:
                seconds = deadline - time.monotonic() + _GRACE_SECONDS
                stream.timers.append(self._loop.call_later(seconds, self._expire, stream, request, only_queued))

    def _expire(self, stream: TokenStream, request: Request, only_queued: bool) -> None:
        if not (only_queued and request.was_admitted):
            stream.abort()
            stream.end(FinishReason.TIMEOUT, None)

    def _check_queue(self, num_tokens: int) -> None:
        """Refuses a prompt that the queue has no room for. Requests that are still in the inbox count as queued.

        Raises:
            QueueFull: the queue is at its limit.
        """
        counters, config = self._engine.scheduler.counters, self._config
        num_requests = self._num_submitted - counters.num_dequeued
        if num_requests >= config.max_num_queued_requests:
            raise QueueFull(f"{num_requests} requests are queued; the limit is {config.max_num_queued_requests}")
        num_queued = self._num_queued_tokens()
        if num_requests and num_queued + num_tokens > config.max_num_queued_tokens:
            raise QueueFull(
                f"{num_queued} prompt tokens are queued and this prompt has {num_tokens}; "
                f"the limit is {config.max_num_queued_tokens}"
            )

    def _num_queued_tokens(self) -> int:
        """Prompt tokens of the requests that have not begun, those in the inbox among them."""
        return self._num_submitted_tokens - self._engine.scheduler.counters.num_dequeued_tokens

    def _abort(self, request_id: str) -> None:
        self._engine_loop.post(Abort(request_id))

    # ---------------------------------------------------------------- called in the engine thread

    def _on_failure(self, error: BaseException) -> None:
        self._call(partial(self._fail, error))

    def _call(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # The asyncio loop is closed, so nobody can receive events any more.
            self._engine_loop.post(Shutdown())

    # ---------------------------------------------------------------- called in the asyncio thread

    def _forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)

    def _fail(self, error: BaseException) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._watchdog.stop()
        self.lifecycle.close("the engine has failed")
        self._end_streams(FinishReason.ERROR, f"the engine failed: {type(error).__name__}: {error}")
        self._engine.close(failure=f"{type(error).__name__}: {error}")
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _end_streams(self, reason: FinishReason, error: str | None) -> None:
        for stream in self._streams.values():
            stream.end(reason, error)
        self._streams.clear()


def _check_output(num_output_tokens: int, num_prompt_tokens: int, max_tokens: int, max_tokens_parameter: str) -> None:
    """
    Raises:
        InvalidParameter: so many tokens at the end of a prompt cannot be the output so far.
    """
    name = "num_prompt_output_tokens"
    if not 0 <= num_output_tokens < num_prompt_tokens:
        raise InvalidParameter(
            name,
            f"{name} is {num_output_tokens} and the prompt has {num_prompt_tokens} tokens; "
            "it must be at least 0, and less than the prompt has",
        )
    if num_output_tokens >= max_tokens:
        raise InvalidParameter(
            name,
            f"{name} is {num_output_tokens} and {max_tokens_parameter}, which counts them too, is {max_tokens}; "
            "it must be less",
        )
