"""Which requests the next step computes, and what a finished step means for them.

The scheduler knows no prefill and no decode phase: every request has `num_computed_tokens`
catching up with its tokens, and each step spends a token budget, running requests first, so
that a burst of long prompts cannot stall streams. (The idea is that of vLLM's V1 scheduler.)
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from operator import attrgetter

from cache.pool import OutOfPages, PagePool
from engine.border.types import FinishReason
from engine.schedule.counters import SchedulerCounters
from engine.schedule.deadlines import Deadlines
from engine.schedule.plan import StepPlan
from engine.schedule.prefix_cache import PrefixCache
from engine.schedule.request import Request, RequestStatus
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.step_event import StepEvent
from engine.schedule.step_result import StepResult
from sampling.host.grammar import GrammarError
from sampling.host.rows import NOTHING_LEFT, Level

MAX_PREEMPTIONS = 3  # of one request; from then on it holds all the pages it may ever need


class Scheduler:
    """Host logic alone: neither JAX nor asyncio, so its tests run in microseconds."""

    def __init__(
        self,
        pool: PagePool,
        buffer: SequenceBuffer,
        *,
        page_size: int,
        max_num_batched_tokens: int,
        chunk_alignment: int,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        enable_prefix_caching: bool = True,
        decode_chunk: int = 1,
    ) -> None:
        """Args:
        chunk_alignment: tokens; the device pads each chunk of more than one token to a multiple
            of this, and the budget is charged for the padding too.
        decode_chunk: steps that the device does in one program where every row can.
        """
        if max_num_batched_tokens < buffer.num_slots + chunk_alignment:
            raise ValueError(
                f"max_num_batched_tokens is {max_num_batched_tokens}; it must be at least max_num_seqs "
                f"({buffer.num_slots}) plus one chunk of {chunk_alignment}, or prompts would starve"
            )
        if chunk_alignment < 2:
            raise ValueError(f"chunk_alignment is {chunk_alignment}; a piece of a prompt is never of one token")
        self.pool = pool
        self.buffer = buffer
        self.counters = SchedulerCounters()
        self._page_size = page_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._chunk_alignment = chunk_alignment
        self._vocab_size = vocab_size
        self._decode_chunk = decode_chunk
        self._eos_token_ids = eos_token_ids
        self._prefixes = PrefixCache(pool, page_size, is_enabled=enable_prefix_caching)
        self._requests: dict[str, Request] = {}  # all that have not finished
        self._waiting: list[Request] = []  # sorted by Request.order
        self._running: list[Request] = []  # in order of admission
        self._num_in_flight_steps = 0
        self.is_admitting = True  # False: requests that have begun go on, new ones wait
        self._deadlines = Deadlines()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_begun(self) -> int:
        """Requests that have left the queue at least once and have not ended, those in flight included."""
        return len(self._running) + sum(request.was_admitted for request in self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether any request has not sent its last event."""
        return bool(self._requests)

    @property
    def may_work(self) -> bool:
        """Whether any of the work may be done: new requests may be held back until those that have begun end."""
        return self.is_admitting or self.num_begun > 0

    def check_idle(self) -> None:
        """Looks for leaks in a quiet moment.

        Raises:
            RuntimeError: pages or slots are held although no request is left.
        """
        num_used_slots = self.buffer.num_slots - self.buffer.num_free_slots
        is_quiet = not (self._requests or self._num_in_flight_steps)
        if is_quiet and (self._running or self.pool.num_active or num_used_slots):
            raise RuntimeError(f"{self.pool.num_active} pages and {num_used_slots} slots are held by no request")

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued, running or in flight: every page is free or cached."""
        return not (self._requests or self._running or self._num_in_flight_steps)

    # ---------------------------------------------------------------- requests come and go

    def add(self, request: Request) -> None:
        """Queues a request."""
        if request.request_id in self._requests:
            raise ValueError(f"request {request.request_id!r} is known already")
        self._requests[request.request_id] = request
        request.stop_ids = frozenset(request.params.stop_token_ids)
        if not request.params.ignore_eos or request.matcher is not None:  # at a grammar's end nothing else may come
            request.stop_ids |= self._eos_token_ids
        self._deadlines.add(request)
        insort(self._waiting, request, key=attrgetter("order"))

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> StepEvent | None:
        """Ends a request now; what it holds is freed here or, while a step of it is in flight, in commit.

        Returns:
            Its last event, or None where it has ended already.
        """
        request = self._requests.get(request_id)
        return None if request is None else self._finish(request, (), reason)

    def fail(self, request: Request, error: str) -> StepEvent | None:
        """Ends a request that is at a dead end; None where it has ended already."""
        if request.status is RequestStatus.FINISHED:
            return None
        return self._end_dead(request, (), error)

    def expire(self, now: float) -> list[StepEvent]:
        """Ends the requests whose time is over; `now` is on the clock of the deadlines."""
        return [self._finish(request, (), FinishReason.TIMEOUT) for request in self._deadlines.pop_over(now)]

    def abort_all(self, reason: FinishReason, error: str | None = None) -> list[StepEvent]:
        """Ends every request."""
        return [self._finish(request, (), reason, error) for request in list(self._requests.values())]

    # ---------------------------------------------------------------- schedule

    def schedule(self) -> StepPlan | None:
        """Plans the next step, or None where there is nothing to compute now.

        None with work left means: commit what is in flight, then ask again. Where the pool is out
        of pages, commits may free some, so they come first; with nothing in flight the request of
        lowest priority and latest arrival gives its pages up.
        """
        while True:
            try:
                plan = self._plan()
            except OutOfPages:
                if self._num_in_flight_steps:
                    return None
                # A sheltered request has all its pages, so the one in need is among these.
                self._preempt(max((r for r in self._running if not _is_sheltered(r)), key=attrgetter("order")))
                continue
            if not plan.requests:
                return None
            self._num_in_flight_steps += 1
            self.counters.num_steps += 1
            return plan

    def _plan(self) -> StepPlan:
        """One attempt at a step. Pages handed out stay with their requests if it fails.

        Raises:
            OutOfPages: a running request needs a page and there is none; nothing is planned.
        """
        singles, chunks = StepPlan(), StepPlan()
        long: list[Request] = []  # requests with more than one token to compute: they get what the others leave
        page_size, running = self._page_size, RequestStatus.RUNNING
        for request in self._running:
            known = len(request.token_ids) + request.num_in_flight_tokens
            if known >= request.max_length or request.status is not running:
                continue
            start = request.num_computed_tokens
            if known - start > 1:
                long.append(request)
                continue
            if known > len(request.pages) * page_size:
                self._grow(request, known)
            singles.requests.append(request)
            singles.starts.append(start)
        num_singles = len(singles.requests)
        singles.num_tokens, singles.samples = [1] * num_singles, [True] * num_singles
        budget = self._max_num_batched_tokens - num_singles
        for request in long:
            start, known = request.num_computed_tokens, request.num_tokens
            num_tokens, charge = self._fit(known - start, budget)
            if num_tokens:
                self._grow(request, start + num_tokens)
                budget -= charge
                chunks.add(request, start, num_tokens, start + num_tokens == known)
        self._admit(budget, singles, chunks)
        if self._decode_chunk > 1 and not chunks.requests and self._can_repeat(singles):
            singles.num_repeats = self._decode_chunk
        num_repeats = singles.num_repeats
        for request in singles.requests:
            request.num_computed_tokens += num_repeats
            request.num_in_flight_steps += 1
            request.num_in_flight_tokens += num_repeats
        for request, num_tokens, samples in zip(chunks.requests, chunks.num_tokens, chunks.samples, strict=True):
            request.num_computed_tokens += num_tokens
            request.num_in_flight_steps += 1
            request.num_in_flight_tokens += samples
        singles.extend(chunks)
        return singles

    def _fit(self, num_tokens: int, budget: int) -> tuple[int, int]:
        """How many of `num_tokens` the budget allows, and what they are charged."""
        if num_tokens == 1:
            return (1, 1) if budget >= 1 else (0, 0)
        alignment = self._chunk_alignment
        allowed = budget // alignment * alignment
        if num_tokens > allowed:
            return allowed, allowed
        return num_tokens, -(-num_tokens // alignment) * alignment

    def _grow(self, request: Request, num_tokens: int) -> None:
        """Makes sure that the request has pages for its first `num_tokens` tokens.

        Raises:
            OutOfPages: the pool has too few.
        """
        num_missing = -(-num_tokens // self._page_size) - len(request.pages)
        if num_missing > 0:
            pages = self.pool.allocate(num_missing)
            self.buffer.append_pages(request.slot, len(request.pages), pages)
            request.pages += pages

    def _can_repeat(self, plan: StepPlan) -> bool:
        """Whether every row has so many tokens to go; where they have, their pages are handed out."""
        num_more = self._decode_chunk - 1
        rows = list(zip(plan.requests, plan.starts, plan.samples, strict=True))
        if not all(samples and r.num_tokens + num_more < r.max_length for r, _, samples in rows):
            return False
        if any(request.level is Level.FULL for request in plan.requests):
            return False
        lengths = [(request, start + 1 + num_more) for request, start, _ in rows]
        num_missing = sum(max(0, -(-length // self._page_size) - len(r.pages)) for r, length in lengths)
        if num_missing > self.pool.num_allocatable:
            return False
        for request, length in lengths:
            self._grow(request, length)
        return True

    def _preempt(self, request: Request) -> None:
        """Takes slot and pages from a running request; it is computed again later from its tokens."""
        request.num_preemptions += 1
        self.counters.num_preemptions += 1
        self._send_back(request)

    def _send_back(self, request: Request) -> None:
        self._leave(request)
        request.status = RequestStatus.WAITING
        request.num_computed_tokens = request.num_committed_tokens = 0
        if request.prompt_logprobs is not None:
            request.prompt_logprobs = []  # the whole prompt is computed again
        insort(self._waiting, request, key=attrgetter("order"))

    def send_all_back(self) -> None:
        """Sends every running request back to the queue, because the pages' content is about to be lost.

        Raises:
            RuntimeError: steps are in flight.
        """
        if self._num_in_flight_steps:
            raise RuntimeError(f"{self._num_in_flight_steps} steps are in flight")
        for request in tuple(self._running):
            self._send_back(request)
        self.pool.reset_prefix_cache()

    def _admit(self, budget: int, singles: StepPlan, chunks: StepPlan) -> None:
        """Starts waiting requests, best first, while slots, pages and budget last."""
        position = 0
        while position < len(self._waiting) and self.buffer.num_free_slots and budget > 0:
            request = self._waiting[position]
            # It waits for new weights, or for pages of its prefix that another request computes right now.
            if not (self.is_admitting or request.was_admitted) or self._prefixes.must_wait(request):
                position += 1
                continue
            cached = self._prefixes.match(request)
            start = len(cached) * self._page_size
            num_tokens, charge = self._fit(request.num_tokens - start, budget)
            if num_tokens == 0:
                break
            num_wanted = request.max_length if _is_sheltered(request) else request.num_tokens
            num_needed = -(-num_wanted // self._page_size) - len(cached)
            num_reclaimed = sum(page.ref_cnt == 0 for page in cached)
            # One page in reserve for each running request, or the next step would preempt.
            if self.pool.num_allocatable - num_reclaimed < num_needed + len(self._running):
                break
            del self._waiting[position]
            self.pool.touch(cached)
            request.pages = cached + self.pool.allocate(num_needed)
            self._enter(request, start)
            budget -= charge
            plan = singles if num_tokens == 1 else chunks
            plan.add(request, start, num_tokens, start + num_tokens == request.num_tokens)

    def _enter(self, request: Request, num_cached_tokens: int) -> None:
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_cached_tokens
        self.buffer.add_request(request)
        self.buffer.append_pages(request.slot, 0, request.pages)
        self._running.append(request)
        if not request.was_admitted:
            request.was_admitted = True
            self._count_dequeued(request)
            request.num_cached_tokens = num_cached_tokens
            self.counters.num_prompt_tokens += request.num_prompt_tokens
            self.counters.prefix_cache_queries += request.num_prompt_tokens
            self.counters.prefix_cache_hits += num_cached_tokens
        self._prefixes.enter(request, num_cached_tokens // self._page_size)

    def _count_dequeued(self, request: Request) -> None:
        self.counters.num_dequeued += 1
        self.counters.num_dequeued_tokens += request.num_prompt_tokens

    def _leave(self, request: Request) -> None:
        """Gives slot and pages back; nothing of the request is in flight."""
        self.buffer.remove_request(request)
        self._prefixes.commit(request)
        self.pool.release(request.pages)
        request.pages = []
        self._running.remove(request)
        self._prefixes.leave(request)

    # ---------------------------------------------------------------- commit

    def commit(self, plan: StepPlan, result: StepResult) -> list[StepEvent]:
        """Makes a finished step true on the host.

        Args:
            result: its tokens are one for each row of the plan that samples, in order; of a chunk, repeat after repeat.

        Returns:
            The events of all requests of the step.
        """
        self._num_in_flight_steps -= 1
        events: list[StepEvent] = []
        tokens, logprobs = result.tokens, result.logprobs
        num_repeats, running = plan.num_repeats, RequestStatus.RUNNING
        num_seen = 0  # rows that sample
        if num_repeats == 1:
            sampled_rows: Iterator[Sequence[int]] = zip(tokens)
        else:
            num_sampled = len(tokens) // num_repeats
            sampled_rows = (tokens[row::num_sampled] for row in range(num_sampled))
        for request, start, num_tokens, samples in zip(
            plan.requests, plan.starts, plan.num_tokens, plan.samples, strict=True
        ):
            request.num_in_flight_steps -= 1
            sampled = next(sampled_rows) if samples else ()
            num_seen += samples
            request.num_in_flight_tokens -= len(sampled)
            if request.status is not running:
                # It ended while this step was in flight: its tokens are dropped, its pages are freed once.
                if not request.num_in_flight_steps:
                    self._leave(request)
                continue
            request.num_committed_tokens = start + num_tokens
            if request.num_hashed_pages < len(request.page_hashes):
                self._prefixes.commit(request)  # others may wait for what has a name; later pages get theirs at the end
            if request.prompt_logprobs is not None and request in result.prompt_logprobs:
                request.prompt_logprobs.append(result.prompt_logprobs[request])
            if samples:
                event = self._append(request, sampled)
                if logprobs is not None and request.params.logprobs is not None:
                    event.logprobs = logprobs[num_seen - 1 : num_seen - 1 + len(event.token_ids)]
                if request.prompt_logprobs is not None:
                    event.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
                events.append(event)
        return events

    def _append(self, request: Request, sampled: Sequence[int]) -> StepEvent:
        """Appends a row's tokens up to the end of the request, if that is among them."""
        token_ids, stop_ids = request.token_ids, request.stop_ids
        for num_accepted, token in enumerate(sampled, start=1):
            dead_end = self._dead_end(request, token)
            if dead_end is not None:
                return self._end_dead(request, sampled[: num_accepted - 1], dead_end)
            if not 0 <= token < self._vocab_size:
                self._prefixes.forget(request)
                error = "the model computed a value that is not a number"
                return self._finish(request, sampled[: num_accepted - 1], FinishReason.ERROR, error)
            token_ids.append(token)
            self.counters.num_generation_tokens += 1
            reason = None
            if token in stop_ids:
                reason = FinishReason.STOP
            elif len(token_ids) >= request.max_length:
                reason = FinishReason.LENGTH
            if reason is not None:
                request.num_committed_tokens += num_accepted - 1
                return self._finish(request, sampled[:num_accepted], reason)
        # Of several steps in one, each but the last has computed what the one before it sampled.
        request.num_committed_tokens += len(sampled) - 1
        return StepEvent(request, sampled, None)

    def _dead_end(self, request: Request, token: int) -> str | None:
        """Why the request's own parameters end it at what was sampled, or None where they do not."""
        if token == self._vocab_size + NOTHING_LEFT:
            return "the request's parameters leave no token that could come next"
        if request.matcher is not None and token < self._vocab_size and token not in request.stop_ids:
            try:
                request.matcher.accept(token)
            except GrammarError as error:
                return str(error)
        return None

    def _end_dead(self, request: Request, token_ids: Sequence[int], error: str) -> StepEvent:
        event = self._finish(request, token_ids, FinishReason.ERROR, error)
        event.is_dead_end = True
        return event

    def _finish(
        self, request: Request, token_ids: Sequence[int], reason: FinishReason, error: str | None = None
    ) -> StepEvent:
        del self._requests[request.request_id]
        if request.status is RequestStatus.WAITING:
            self._waiting.remove(request)
            if not request.was_admitted:
                self._count_dequeued(request)
        request.finish_reason = reason
        was_running = request.status is RequestStatus.RUNNING
        request.status = RequestStatus.FINISHED
        if was_running:
            self._prefixes.leave(request)
            if not request.num_in_flight_steps:
                self._leave(request)
        return StepEvent(request, token_ids, reason, error)


def _is_sheltered(request: Request) -> bool:
    """Whether the request was preempted so often that it shall not be again."""
    return request.num_preemptions >= MAX_PREEMPTIONS
