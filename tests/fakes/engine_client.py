"""An engine whose outputs can be computed by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import cast

import numpy as np

from engine.adapters.adapter_weights import AdapterWeights
from engine.client import EngineClient
from engine.interface.config import ModelInfo
from engine.interface.context_overflow import ContextOverflow
from engine.interface.errors import ModelError
from engine.interface.snapshot import EngineSnapshot, RequestView, StepView
from engine.interface.types import (
    AdapterChoice,
    EngineBusy,
    EngineError,
    EngineState,
    EngineStats,
    FinishReason,
    Pooling,
    Poolings,
    PromptPicture,
    PromptProgress,
    QueueFull,
    TokenEvent,
    TokenLogprobs,
    TraceEvent,
)
from engine.token_stream import Listener, Outbox
from sampling.host.grammar import GrammarError, TokenMatcher
from sampling.host.params import InvalidParameter, SamplingParams

Respond = Callable[[Sequence[int], SamplingParams], Sequence[int]]


def echo(prompt_token_ids: Sequence[int], _params: SamplingParams) -> Sequence[int]:
    """The default answer: the prompt itself, then the end of the sequence."""
    return prompt_token_ids


def logprob_of(token_id: int) -> float:
    """The same wherever the token stands; binary fractions, so that sums are exact."""
    return -(token_id + 1) / 32


def token_logprobs(token_id: int, num_best: int, listed: Sequence[int] = ()) -> TokenLogprobs:
    """The smaller the id, the likelier is the token."""
    best = [(best_id, logprob_of(best_id)) for best_id in range(num_best)]
    return TokenLogprobs(logprob_of(token_id), token_id + 1, best, [logprob_of(listed_id) for listed_id in listed])


class FakeTokenStream:
    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        output: Sequence[int],
        params: SamplingParams,
        engine: FakeEngineClient,
        matcher: TokenMatcher | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self.matcher = matcher
        self.wants_progress = False
        self.num_generated = 0
        self.num_events_read = 0
        self.is_finished = False
        self.admitted_at: float | None = time.perf_counter()
        self._output = output
        self._engine = engine
        self._token_ids: list[int] = []
        self._finish_reason: FinishReason | None = None
        self._error: str | None = None
        self._is_dead_end = False
        self._progress: PromptProgress | None = None
        self._is_read_to_end = False
        self._has_brought_prompt = False
        self.has_news = False
        self._waiter: asyncio.Future[None] | None = None
        self._has_only_tokens = params.logprobs is None and params.prompt_logprobs is None
        self._listener: Listener | None = None

    def __aiter__(self) -> FakeTokenStream:
        return self

    async def __anext__(self) -> TokenEvent:
        if self._is_read_to_end:
            raise StopAsyncIteration
        await self.wait()
        return self.take()

    async def wait(self, others: Sequence[FakeTokenStream] = ()) -> None:
        streams = (self, *others)
        if not any(stream.has_news for stream in streams):
            waiter = asyncio.get_running_loop().create_future()
            for stream in streams:
                stream._waiter = waiter
            try:
                await waiter
            finally:
                for stream in streams:
                    stream._waiter = None

    @property
    def is_awaited(self) -> bool:
        """Whether a reader waits for the next event."""
        return self._waiter is not None

    def take(self) -> TokenEvent:
        self.has_news = False
        token_ids, self._token_ids = self._token_ids, []
        progress, self._progress = self._progress, None
        self._is_read_to_end = self._finish_reason is not None
        self.num_events_read += 1
        brings_prompt = bool(token_ids) and not self._has_brought_prompt
        self._has_brought_prompt |= brings_prompt
        return TokenEvent(
            token_ids,
            self._finish_reason,
            self._engine.num_cached_tokens,
            self._error,
            self._logprobs_of(token_ids),
            self._prompt_logprobs() if brings_prompt else None,
            self._is_dead_end,
            progress=None if token_ids else progress,
        )

    def _logprobs_of(self, token_ids: Sequence[int]) -> list[TokenLogprobs] | None:
        num_best = self.params.logprobs
        if num_best is None:
            return None
        return [token_logprobs(token_id, num_best, self.params.logprob_token_ids) for token_id in token_ids]

    def _prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        num_best = self.params.prompt_logprobs
        if num_best is None:
            return None
        return [None, *(token_logprobs(token_id, num_best) for token_id in self.prompt_token_ids[1:])]

    def listen(self, listener: Listener | None) -> None:
        self._listener = listener
        if listener is not None and self.has_news and not self._is_read_to_end:
            outbox = listener.receive(self.take())
            if outbox is not None:
                outbox.flush()

    def _tell(self) -> Outbox | None:
        self.has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        listener, token_ids = self._listener, self._token_ids
        if listener is None:
            return None
        if self._has_only_tokens and self._finish_reason is None and self._progress is None:
            self.has_news = False
            self._token_ids = []
            self.num_events_read += 1
            return listener.receive_tokens(token_ids)
        return listener.receive(self.take())

    def abort(self) -> None:
        if not self.is_finished:
            self._engine.aborted.append(self.request_id)
            self.finish(FinishReason.ABORT)

    def finish(self, reason: FinishReason, error: str | None = None) -> None:
        self._end(reason, error)
        outbox = self._tell()
        if outbox is not None:
            outbox.flush()

    def _end(self, reason: FinishReason, error: str | None = None) -> None:
        self.is_finished = True
        self._finish_reason, self._error = reason, error
        self._engine.running.pop(self.request_id, None)

    def report(self, progress: PromptProgress) -> None:
        """Tells how the request waits."""
        assert self.wants_progress
        self._progress = progress
        self._tell()

    def meet_dead_end(self, message: str) -> None:
        """The request cannot go on, because of what it asks for itself."""
        self._is_dead_end = True
        self.finish(FinishReason.ERROR, message)

    def step(self) -> None:
        """One more token."""
        outbox = self.advance()
        if outbox is not None:
            outbox.flush()

    def advance(self) -> Outbox | None:
        """One more token; returns what is to be flushed when there are no more for now."""
        position = self.num_generated
        if position < len(self._output):
            token_id = self._output[position]
        elif self.params.ignore_eos and self._output:
            token_id = self._output[position % len(self._output)]
        else:
            token_id = self._engine.eos_token_id
        if self.matcher is not None:
            try:
                self.matcher.accept(token_id)
            except GrammarError as error:
                self.meet_dead_end(str(error))
                return None
        self.num_generated += 1
        self._token_ids.append(token_id)
        if token_id in self.params.stop_token_ids or (
            token_id == self._engine.eos_token_id and not self.params.ignore_eos
        ):
            self._end(FinishReason.STOP)
        elif self.num_generated == self.params.max_tokens:
            self._end(FinishReason.LENGTH)
        return self._tell()


class FakeLifecycle:
    """The engine's states alone. Every change takes one turn of the loop, as a call in another thread would.

    One change is made after the other, and its caller may be told late.
    """

    def __init__(self, num_begun: Callable[[], int]) -> None:
        self.state = EngineState.RUNNING
        self.calls: list[object] = []  # what was asked, in order
        self.beside_others: list[bool] = []  # of each wake and update: whether it was said to be beside other engines
        self.error: Exception | None = None  # what the next change is refused with
        self.flaw: Exception | None = None  # what the check of forgotten weights finds
        self.fails_half_way = False  # whether a change that is refused has changed the state
        self.num_cached_prefixes = 1
        self.is_holding_pages = False
        self.has_weights = True
        self.num_begun = num_begun
        self.may_tell = asyncio.Event()  # once it is set, callers are told of changes that have been made
        self.may_tell.set()
        self._lock = asyncio.Lock()

    async def pause(self) -> None:
        await self._change("pause", EngineState.PAUSED)

    async def resume(self) -> None:
        if self.state is EngineState.ASLEEP:
            raise EngineBusy("the engine is asleep; it must be woken, not resumed")
        await self._change("resume", EngineState.RUNNING)

    async def sleep(
        self,
        *,
        drop_weights: bool = False,
        forget_weights: bool = False,
        drain: bool = False,
        is_wanted: Callable[[], bool] | None = None,
    ) -> None:
        while drain and self.num_begun():
            await asyncio.sleep(0.002)
        call = "forget" if forget_weights else ("sleep", drop_weights)
        if await self._change(call, EngineState.ASLEEP, is_wanted):
            self.has_weights = self.has_weights and not forget_weights

    async def wake(self, *, is_beside_others: bool = False, is_wanted: Callable[[], bool] | None = None) -> None:
        self.beside_others.append(is_beside_others)
        if await self._change("wake", EngineState.RUNNING, is_wanted):
            self.has_weights = True

    async def check_weights(self) -> None:
        await asyncio.sleep(0)
        if self.flaw is not None and not self.has_weights:
            raise self.flaw

    async def settle(self) -> None:
        await asyncio.sleep(0)

    async def reset_prefix_cache(self) -> bool:
        await self._change("reset_prefix_cache", self.state)
        return not self.is_holding_pages

    async def update_weights(self, path: Path, *, drain: bool = False, is_beside_others: bool = False) -> None:
        self.beside_others.append(is_beside_others)
        await self._change(("update_weights", str(path), drain), self.state)

    async def _change(self, call: object, state: EngineState, is_wanted: Callable[[], bool] | None = None) -> bool:
        async with self._lock:
            if is_wanted is not None and not is_wanted():
                return False
            self.calls.append(call)
            await asyncio.sleep(0)
            if self.error is not None:
                error, self.error = self.error, None
                if self.fails_half_way:
                    self.state = state
                raise error
            self.state = state
            await self.may_tell.wait()
            return True


class FakeEngineClient:
    """Speaks the part of EngineClient that the server knows.

    Args:
        is_manual: tokens come by `step()` alone; otherwise one per turn of the loop.
    """

    def __init__(
        self,
        *,
        respond: Respond = echo,
        is_manual: bool = False,
        vocab_size: int = 260,
        eos_token_id: int = 257,
        max_model_len: int = 512,
        max_num_queued: int = 1024,
    ) -> None:
        self.model_info = ModelInfo("fake", vocab_size, max_model_len, "float32", 0, "cpu", "xla", "xla", "a fake")
        self.respond = respond
        self.is_manual = is_manual
        self.eos_token_id = eos_token_id
        self.max_num_queued = max_num_queued
        self.num_cached_tokens = 0
        self.running: dict[str, FakeTokenStream] = {}
        self.options: dict[str, dict[str, object]] = {}  # what each submit was told besides the parameters
        self.tenants: dict[str, str] = {}  # whose each request is
        self.pictures: tuple[PromptPicture, ...] = ()  # those of the last request
        self.adapters: list[AdapterChoice | None] = []  # of each request
        self.loaded_adapters: list[tuple[int, str]] = []  # slot and digest, in order
        self.submitted: list[FakeTokenStream] = []
        self.aborted: list[str] = []
        self.is_alive = False
        self.is_shut_down = False
        self.lifecycle = FakeLifecycle(lambda: sum(stream.num_generated > 0 for stream in self.running.values()))
        self.num_steps = 0
        self._ids = count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def client(self) -> EngineClient:
        """As the server's signatures want it."""
        return cast(EngineClient, self)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_alive = True
        self._loop = loop
        self._failure = loop.create_future()
        if not self.is_manual:
            self._task = loop.create_task(self._run())

    def read_adapter(self, path: Path) -> AdapterWeights:
        """An adapter whose digest is the name of its folder, which must not begin with "bad"."""
        if path.name.startswith("bad"):
            raise ModelError(f"{path}: it is bad")
        return AdapterWeights({}, path.name)

    async def load_adapter(self, slot: int, weights: AdapterWeights) -> None:
        await asyncio.sleep(0)
        self.loaded_adapters.append((slot, weights.digest))

    def check_text(self, token_ids: Sequence[int]) -> None:
        self.check_prompt([*token_ids, *token_ids[-1:]], 1)

    async def embed(
        self, prompt_token_ids: Sequence[int], pooling: Poolings, *, priority: int = 0, tenant: str = "",
        second_start: int = 0, first_pooled: int = 0, cache_salt: str | None = None,
    ) -> np.ndarray:  # fmt: skip
        """The first and the last token and how many there are; of the mean, negative."""
        values = np.array([prompt_token_ids[0], prompt_token_ids[-1], len(prompt_token_ids)], np.float32)
        return -values if pooling is Pooling.MEAN else values

    def check_prompt(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        max_tokens_parameter: str = "max_tokens",
        *,
        num_prompt_output_tokens: int = 0,
    ) -> None:
        limit, vocab_size = self.model_info.max_model_len, self.model_info.vocab_size
        num_tokens = len(prompt_token_ids)
        if num_tokens >= limit:
            raise ContextOverflow("prompt", f"the prompt has {num_tokens} tokens", limit=limit, num_tokens=num_tokens)
        if num_tokens - num_prompt_output_tokens + max_tokens > limit:
            raise ContextOverflow(
                max_tokens_parameter,
                f"{max_tokens_parameter} is {max_tokens} and the prompt has {num_tokens} tokens",
                limit=limit, num_tokens=num_tokens, max_tokens=max_tokens,
            )  # fmt: skip
        if num_tokens == 0:
            raise InvalidParameter("prompt", "the prompt is empty")
        if num_prompt_output_tokens and num_prompt_output_tokens >= min(num_tokens, max_tokens):
            raise InvalidParameter("num_prompt_output_tokens", "num_prompt_output_tokens must be less")
        for token_id in prompt_token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidParameter("prompt", f"the prompt has token id {token_id}; the last is {vocab_size - 1}")

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
        wants_progress: bool = False,
        pictures: Sequence[PromptPicture] = (),
        adapter: AdapterChoice | None = None,
        is_checked: bool = False,
    ) -> FakeTokenStream:
        if not self.is_alive:
            raise EngineError("the engine is not running")
        assert is_checked  # the server and the offline engine check a whole request before they submit any of it
        if len(self.running) >= self.max_num_queued:
            raise QueueFull(f"{len(self.running)} requests wait; the limit is {self.max_num_queued}")
        request_id = request_id or f"request-{next(self._ids)}"
        self.options[request_id] = {"priority": priority, "cache_salt": cache_salt, "timeout": timeout}
        self.tenants[request_id] = tenant
        self.pictures = tuple(pictures)
        self.adapters.append(adapter)
        output = self.respond(prompt_token_ids, params)
        stream = FakeTokenStream(request_id, prompt_token_ids, output, params, self, matcher)
        stream.wants_progress = wants_progress
        self.running[request_id] = stream
        self.submitted.append(stream)
        return stream

    def trace(self, num_steps: int | None = None) -> list[TraceEvent]:
        return [{"name": "step", "ph": "X", "ts": 0.0, "dur": 1.0, "args": {"steps": num_steps}}]

    def snapshot(self) -> EngineSnapshot:
        """Every running request has a slot and one page; the step that the snapshot tells of took a millisecond."""
        now = time.perf_counter()
        running = [
            RequestView(
                stream.request_id, slot, len(stream.prompt_token_ids), len(stream.prompt_token_ids), 0,
                stream.num_generated, 1, 0, False, now - 1.0, now - 0.5,
            )
            for slot, stream in enumerate(self.running.values())
        ]  # fmt: skip
        moments = [now + 1e-4 * at for at in range(8)]
        steps = [StepView(self.num_steps, len(running), len(running), *moments, 0.0)] if self.num_steps else []
        states = bytes([3, 3, *(2 for _ in running), 1, 0, 0, 0])
        return EngineSnapshot(now, self.stats(), 8, running, [], states, 1, 2, steps)

    def stats(self) -> EngineStats:
        return EngineStats(num_running=len(self.running), num_steps=self.num_steps)

    @property
    def failure(self) -> asyncio.Future[None]:
        assert self._failure is not None
        return self._failure

    def end_streams(self, error: str | None = None) -> None:
        for stream in list(self.running.values()):
            stream.finish(FinishReason.ABORT if error is None else FinishReason.ERROR, error)

    def shutdown(self, join_seconds: float = 5.0) -> None:
        self.joined_for = join_seconds
        self.is_shut_down = True
        self.is_alive = False
        if self._task is not None:
            self._task.cancel()
        for stream in list(self.running.values()):
            stream.finish(FinishReason.ABORT)
        if self._failure is not None and not self._failure.done():
            self._failure.cancel()

    async def shutdown_in_background(self) -> None:
        await asyncio.sleep(0)
        self.shutdown()

    def step(self, num_steps: int = 1) -> None:
        """One token for each running request, `num_steps` times; the asyncio loop sees all of them at once."""
        outboxes: set[Outbox] = set()
        for _ in range(num_steps):
            self.num_steps += 1
            for stream in list(self.running.values()):
                outbox = stream.advance()
                if outbox is not None:
                    outboxes.add(outbox)
        for outbox in outboxes:
            outbox.flush()

    def fail(self, message: str) -> None:
        """The engine thread ends with an exception."""
        self.is_alive = False
        for stream in list(self.running.values()):
            stream.finish(FinishReason.ERROR, message)
        self.failure.set_exception(EngineError(message))
        self.failure.exception()  # retrieved, or asyncio complains where nobody looks

    def fail_soon(self, message: str) -> None:
        """`fail`, from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.fail, message)

    def dead_end_soon(self, message: str) -> None:
        """Every running request ends with an error of its own; from any thread."""
        assert self._loop is not None
        for stream in list(self.running.values()):
            self._loop.call_soon_threadsafe(stream.meet_dead_end, message)

    async def _run(self) -> None:
        while True:
            if self.lifecycle.state is EngineState.RUNNING:
                self.step()
            await asyncio.sleep(0 if self.running else 0.002)
