"""The scheduler: which requests the next step computes, and how many tokens of each.

There is no prefill phase and no decode phase, as in vLLM's V1 scheduler: every request has `num_computed_tokens`
catching up with its number of tokens. Each step spends a token budget, and running requests come first.
"""

from collections.abc import Sequence

from cache.pool import OutOfPages, PagePool
from engine.interface.types import FinishReason
from engine.schedule.admission import preempt_one
from engine.schedule.deadlines import Deadlines
from engine.schedule.live_requests import LiveRequests, SchedulerCounters
from engine.schedule.output_processor import OutputProcessor
from engine.schedule.prompt_planner import PromptPlanner
from engine.schedule.request import Request, RequestStatus
from engine.schedule.request_event import RequestEvent, StepEvent
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.state_snapshots import StateSnapshots
from engine.schedule.step_plan import StepPlan, StepResult
from engine.schedule.step_time.step_costs import StepWork
from engine.schedule.step_time.step_time_budget import StepTimeBudget
from sampling.host.rows import SamplerVariant

# Steps that are learned from together, because the first of them pays for loading the code into the processor's cache.
_MAX_UNLEARNED_STEPS = 32


class Scheduler:
    """Plans steps and commits their results. It is pure host logic, so its tests run in microseconds."""

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
        num_scheduler_steps: int = 1,
        target_gap: float = 0.0,
        chunk_grain: int | None = None,
        snapshots: StateSnapshots | None = None,
        windows: Sequence[int] = (0,),
    ) -> None:
        """Makes a scheduler without requests.

        Args:
            max_num_batched_tokens: how many tokens of prompts a step computes at most, besides its decode rows.
            chunk_alignment: tokens to whose multiple the device pads each longer chunk; the budget pays for it, too.
            num_scheduler_steps: decode steps that the device does in one program when every row can.
            target_gap: milliseconds that a step with decode rows should take at most; 0: no limit.
            chunk_grain: tokens that the device computes together, of a chunk that it does not pad; None: it pads.
            snapshots: of the states of recurrent layers; None: the model has none.
            windows: of each group of layers with pages of its own; 0: they see all.

        Raises ValueError: the budget would starve prompts, or `chunk_alignment` is below 2.
        """
        if max_num_batched_tokens < chunk_alignment:
            raise ValueError(
                f"max_num_batched_tokens is {max_num_batched_tokens}; it must be at least one chunk of "
                f"{chunk_alignment}, or prompts would starve"
            )
        if chunk_alignment < 2:
            raise ValueError(f"chunk_alignment is {chunk_alignment}; a piece of a prompt is never of one token")
        self.pool = pool
        self.buffer = buffer
        self.counters = SchedulerCounters()
        self.is_admitting = True  # False: requests that have begun go on, and new ones wait
        self.requests = LiveRequests(
            pool, buffer, self.counters, page_size=page_size, enable_prefix_caching=enable_prefix_caching,
            snapshots=snapshots, windows=windows, max_step_tokens=max(max_num_batched_tokens, num_scheduler_steps),
        )  # fmt: skip
        self._output_processor = OutputProcessor(self.requests, vocab_size)
        self._prompts = PromptPlanner(self.requests)
        self.step_time = StepTimeBudget(target_gap, chunk_grain)
        self._deadlines = Deadlines()
        self.max_num_batched_tokens = max_num_batched_tokens
        self.chunk_alignment = chunk_alignment
        self._num_scheduler_steps = num_scheduler_steps
        self._eos_token_ids = eos_token_ids
        self._num_in_flight_steps = 0
        self._only_decodes = False  # all that may be computed is one token of each row of the last plan
        self._unlearned: list[tuple[StepWork, float]] = []  # committed steps, with seconds

    @property
    def num_running(self) -> int:
        return len(self.requests.running)

    @property
    def num_waiting(self) -> int:
        return len(self.requests.waiting)

    @property
    def num_begun(self) -> int:
        """Requests that have left the queue at least once and still hold or await a slot."""
        return self.num_running + sum(request.was_admitted for request in self.requests.waiting)

    @property
    def has_work(self) -> bool:
        """Whether any request has not sent its last event."""
        return bool(self.requests.unfinished)

    @property
    def may_work(self) -> bool:
        """Whether a step may be planned; False only while new requests are held back and no other is left."""
        return self.is_admitting or self.num_begun > 0

    def check_idle(self) -> None:
        """Raises RuntimeError if pages or slots are held although no request is left and no step is in flight."""
        num_used_slots = self.buffer.num_slots - self.buffer.num_free_slots
        is_idle = not (self.has_work or self._num_in_flight_steps)
        num_snapshots = 0 if self.pool.snapshots is None else self.pool.snapshots.num_active
        if is_idle and (self.num_running or self.pool.num_active or num_used_slots):
            raise RuntimeError(f"{self.pool.num_active} pages and {num_used_slots} slots are held by no request")
        if is_idle and num_snapshots:
            raise RuntimeError(f"{num_snapshots} snapshots of states are held by no request")
        if is_idle:
            self.requests.pages.check_idle()

    # ---------------------------------------------------------------- requests come and go

    def add(self, request: Request) -> None:
        """Queues a request; raises ValueError if an unfinished request has the same id."""
        if request.request_id in self.requests.unfinished:
            raise ValueError(f"request {request.request_id!r} is known already")
        request.stop_ids = frozenset(request.params.stop_token_ids)
        # At the end of a grammar nothing but the end-of-sequence token may come, so `ignore_eos` cannot hold.
        if not request.params.ignore_eos or (request.matcher is not None and request.matcher.ends_output):
            request.stop_ids |= self._eos_token_ids
        self._deadlines.add(request)
        self.requests.queue(request)

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> RequestEvent | None:
        """Ends a request and returns its last event, None if it has ended; a step in flight keeps slot and pages."""
        request = self.requests.unfinished.get(request_id)
        return None if request is None else self.requests.finish(request, (), reason)

    def fail(self, request: Request, error: str) -> RequestEvent | None:
        """Ends a request at a dead end; returns None if it has ended already."""
        return self._output_processor.fail(request, error)

    def expire(self, now: float) -> list[RequestEvent]:
        """Ends the requests whose deadline is at or before `now`, in seconds on the monotonic clock."""
        finish = self.requests.finish
        return [finish(request, (), FinishReason.TIMEOUT) for request in self._deadlines.pop_expired(now)]

    def abort_all(self, reason: FinishReason, error: str | None = None) -> list[RequestEvent]:
        unfinished = list(self.requests.unfinished.values())
        return [self.requests.finish(request, (), reason, error) for request in unfinished]

    def send_all_back(self) -> None:
        """Queues every running request again and forgets all prefixes; raises RuntimeError if steps are in flight."""
        if self._num_in_flight_steps:
            raise RuntimeError(f"{self._num_in_flight_steps} steps are in flight")
        for request in tuple(self.requests.running):
            self.requests.send_back(request)
        self.pool.reset_prefix_cache()

    # ---------------------------------------------------------------- schedule and commit

    def schedule(self) -> StepPlan | None:
        """Plans the next step; None if there is nothing to compute now.

        None while `has_work` is true means: commit what is in flight, which may free pages, then call again. With
        nothing in flight and no pages, a request is preempted.
        """
        while True:
            try:
                plan = self._plan()
            except OutOfPages:
                if self._num_in_flight_steps:
                    return None
                preempt_one(self.requests)
                continue
            if not plan.requests:
                return None
            self._num_in_flight_steps += 1
            return plan

    def plan_ahead(self, plan: StepPlan, most: int) -> list[StepPlan]:
        """Plans steps that may follow the one planned last: each decodes one more token of each of its requests.

        At most so many, and none unless every request that could be computed meanwhile is among these and can sample
        beside the forward pass. Whoever withdraws plans does so from the last one on.
        """
        requests, rows = self.requests, plan.requests
        if not self._only_decodes or any(request.level is SamplerVariant.FULL for request in rows):
            return []
        # A request that ends and is none of these frees its slot meanwhile. A piece of a picture is encoded between two
        # steps each, so that they stay apart.
        could_start = self.buffer.num_free_slots or len(requests.running) > len(rows) or requests.pictures is not None
        if requests.waiting and could_start:
            return []
        num_ahead = self._grow_ahead(rows, min(most, *(request.max_length - request.num_tokens for request in rows)))
        plans, work = list[StepPlan](), plan.work
        for index in range(1, num_ahead + 1):
            starts = [start + index for start in plan.starts]
            work = work._replace(decode_context=work.decode_context + len(rows))
            plans.append(StepPlan(rows, starts, plan.num_tokens, plan.samples, work=work))
        for request in rows if num_ahead else ():
            request.num_computed_tokens += num_ahead
            request.num_in_flight_steps += num_ahead
            request.num_in_flight_tokens += num_ahead
        self._num_in_flight_steps += num_ahead
        return plans

    def withdraw(self, plan: StepPlan) -> None:
        """Takes back the last plan of `plan_ahead`, which the device does not compute."""
        self._num_in_flight_steps -= 1
        for request in plan.requests:
            request.num_computed_tokens -= 1
            request.num_in_flight_steps -= 1
            request.num_in_flight_tokens -= 1

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """Notes how long the device took for a step; `step_time` learns from it a few steps later."""
        self._unlearned.append((plan.work, seconds / plan.num_scheduler_steps))
        if plan.work.num_tiles or len(self._unlearned) >= _MAX_UNLEARNED_STEPS:
            self.learn_step_times()

    def learn_step_times(self) -> None:
        """Lets `step_time` learn from all steps so far. Call it before a budget or a prediction."""
        steps, self._unlearned = self._unlearned, []
        for work, seconds in steps:
            self.step_time.learn(work, seconds)

    def commit(self, plan: StepPlan, result: StepResult) -> list[StepEvent]:
        """Commits a finished step, in the order of the plans; returns the events of its requests."""
        self._num_in_flight_steps -= 1
        self.counters.num_steps += 1  # here, because others may be withdrawn, and a count must never fall
        return self._output_processor.commit(plan, result)

    def _plan(self) -> StepPlan:
        """Makes one attempt at a step; if OutOfPages is raised, pages that were allocated stay with their requests."""
        singles, chunks = StepPlan(), StepPlan()
        requests, running = self.requests, RequestStatus.RUNNING
        long: list[Request] = []  # requests with more than one token to compute; they get what the others leave
        # There may be hundreds of requests, so this loop does as little as possible.
        decoding, starts = singles.requests, singles.starts
        for request in requests.running:
            known = len(request.token_ids) + request.num_in_flight_tokens
            if known >= request.max_length or request.status is not running:
                continue
            start = request.num_computed_tokens
            if known - start > 1:
                long.append(request)
                continue
            if known > request.num_paged_tokens:
                requests.grow(request, known)
            decoding.append(request)
            starts.append(start)
        num_singles = len(decoding)
        singles.num_tokens, singles.samples = [1] * num_singles, [True] * num_singles
        singles.work = StepWork(num_singles, sum(starts))
        num_running = len(requests.running)
        if long or requests.waiting:
            self.learn_step_times()
            budget = self.step_time.budget(self.max_num_batched_tokens, self.chunk_alignment, singles.work)
            self._prompts.plan(long, budget, singles, chunks, may_begin=self.is_admitting)
            singles.work = budget.work
        if self._num_scheduler_steps > 1 and not chunks.requests and self._can_repeat(singles):
            singles.num_scheduler_steps = self._num_scheduler_steps
        is_all = len(decoding) == num_singles and len(requests.running) == num_running
        self._only_decodes = is_all and not long and self._num_scheduler_steps == 1 and self.pool.snapshots is None
        num_scheduler_steps = singles.num_scheduler_steps
        for request in singles.requests:
            request.num_computed_tokens += num_scheduler_steps
            request.num_in_flight_steps += 1
            request.num_in_flight_tokens += num_scheduler_steps
        for request, num_tokens, samples in zip(chunks.requests, chunks.num_tokens, chunks.samples, strict=True):
            request.num_computed_tokens += num_tokens
            request.num_in_flight_steps += 1
            request.num_in_flight_tokens += samples
        singles.extend(chunks)
        self.requests.prefixes.planned(singles)
        return singles

    def _grow_ahead(self, rows: Sequence[Request], num_ahead: int) -> int:
        """Allocates the pages of so many tokens more of planned rows, or of as many as their pages have room for."""
        requests = self.requests
        growing = [
            (request, request.num_tokens - 1 + num_ahead)
            for request in rows
            if request.num_tokens - 1 + num_ahead > request.num_paged_tokens
        ]
        if growing and sum(requests.pages.num_missing(*each) for each in growing) > requests.pages.num_allocatable:
            return max(0, min(request.num_paged_tokens - (request.num_tokens - 1) for request in rows))
        for request, length in growing:
            requests.grow(request, length)
        return num_ahead

    def _can_repeat(self, plan: StepPlan) -> bool:
        """Whether every row can do `num_scheduler_steps` steps at once; if so, their pages are allocated here."""
        requests, num_more = self.requests, self._num_scheduler_steps - 1
        rows = list(zip(plan.requests, plan.starts, plan.samples, strict=True))
        if not all(samples and r.num_tokens + num_more < r.max_length for r, _, samples in rows):
            return False
        if any(request.level is SamplerVariant.FULL for request in plan.requests):
            return False
        lengths = [(request, start + 1 + num_more) for request, start, _ in rows]
        growing = [(request, length) for request, length in lengths if length > request.num_paged_tokens]
        if sum(requests.pages.num_missing(*each) for each in growing) > requests.pages.num_allocatable:
            return False
        for request, length in growing:
            requests.grow(request, length)
        return True
