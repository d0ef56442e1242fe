"""A snapshot of the engine's state, as plain data for monitoring."""

from dataclasses import dataclass
from typing import NamedTuple

from engine.interface.types import EngineStats


class RequestView(NamedTuple):
    """One request of the engine. Times are seconds on the clock of `EngineSnapshot.now`."""

    request_id: str  # as the engine knows it
    slot: int  # -1: it waits in the queue
    num_prompt_tokens: int
    num_computed_tokens: int  # of the prompt, steps in flight included
    num_cached_tokens: int  # of the prompt, found in the prefix cache
    num_output_tokens: int
    num_pages: int
    num_preemptions: int
    is_finished: bool  # its last event is sent, and a step in flight still names its slot
    submitted_at: float
    admitted_at: float | None  # when it first left the queue


class StepView(NamedTuple):
    """One committed step. Times are seconds on the clock of `EngineSnapshot.now`."""

    step: int  # counted from 0 in the order of dispatch
    num_rows: int
    num_tokens: int
    schedule_began: float
    dispatch_began: float
    dispatched: float
    wait_began: float
    commit_began: float
    commit_ended: float
    device_began: float
    device_ended: float
    idle_total: float  # seconds of idle device while work waited, from the start to this step's begin


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The state of the engine, read without a lock: two parts of it may be one step apart."""

    now: float  # seconds
    stats: EngineStats
    num_slots: int
    running: list[RequestView]  # in order of admission
    waiting: list[RequestView]  # the first of the queue, by priority and arrival
    page_states: bytes  # one of `cache.pool`'s FREE, CACHED, ACTIVE and SHARED for each page, or for several together
    pages_per_state: int  # how many pages one byte of `page_states` stands for; the last may stand for fewer
    num_shared_pages: int
    steps: list[StepView]  # the last ones, oldest first
