"""The scheduler's counters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the engine started. Only the engine thread writes them; any thread may read them."""

    num_steps: int = 0
    num_admitted: int = 0  # requests that have ever started
    num_dequeued: int = 0  # requests that left the queue for the first time, because they were admitted or ended
    num_dequeued_tokens: int = 0  # prompt tokens of those requests
    num_prompt_tokens: int = 0  # prompt tokens of admitted requests
    num_generation_tokens: int = 0  # committed output tokens
    num_preemptions: int = 0
    prefix_cache_queries: int = 0  # prompt tokens looked up
    prefix_cache_hits: int = 0  # prompt tokens found
