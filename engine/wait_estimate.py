"""How long requests wait for their first token, from what steps cost and from what stands before them."""

from __future__ import annotations

from engine.schedule.request import RequestStatus
from engine.schedule.scheduler import Scheduler
from engine.schedule.step_time.step_work import StepWork


class WaitEstimate:
    """Looks at the running requests once; answers for as many waiting ones as there are.

    Two things keep a request from its first token: prompts, its own among them, of which each step computes so many
    tokens in a time that is known from earlier steps; and slots, which come free as running requests end. How long an
    answer gets is guessed as the mean of all earlier ones. Prompts may be in the prefix cache, and pages may be short:
    neither is known before a request starts, and both are left out.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        """Reads the scheduler; called in the engine thread."""
        scheduler.tell_pace()
        live, pace = scheduler.requests, scheduler.pace
        self.num_prompt_tokens_left = 0  # of prompts that are being computed
        num_rows = context = 0
        for request in live.running:
            if request.status is not RequestStatus.RUNNING:
                continue
            num_left = request.num_tokens - request.num_computed_tokens
            if num_left > 1:
                self.num_prompt_tokens_left += num_left
            else:
                num_rows += 1
                context += request.num_tokens
        decoding = StepWork(num_rows, context)
        budget = pace.budget(scheduler.max_num_batched_tokens, scheduler.chunk_alignment, decoding)
        num_taken = budget.take(scheduler.max_num_batched_tokens, 0)
        self._is_known = pace.costs.has_seen_tiles and num_taken > 0
        self._step_ms = pace.costs.predict(decoding)
        self._token_ms = pace.costs.predict(budget.work) / max(num_taken, 1)
        self._num_free_slots = live.buffer.num_free_slots
        counters = scheduler.counters
        mean_output = counters.num_generation_tokens / max(counters.num_admitted, 1)
        # A slot comes free each time that one of the running requests ends.
        self._slot_ms = max(mean_output, 1.0) * self._step_ms / max(len(live.running), 1)

    def seconds(self, num_tokens: int, num_requests: int | None = None) -> float | None:
        """Seconds until a request's first token; None before a step with a prompt was measured.

        Args:
            num_tokens: of prompts that are computed before that, with its own.
            num_requests: those that start before it; None: it has a slot.
        """
        if not self._is_known:
            return None
        num_ends = 0 if num_requests is None else max(num_requests + 1 - self._num_free_slots, 0)
        return (max(num_tokens * self._token_ms, num_ends * self._slot_ms) + self._step_ms) / 1000
