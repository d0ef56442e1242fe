"""What the scheduler has counted since the start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the start."""

    num_steps: int = 0
    num_dequeued: int = 0  # requests that left the queue for the first time, admitted or ended
    num_dequeued_tokens: int = 0  # their prompt tokens
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
