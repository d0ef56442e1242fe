"""The data that crosses the border between the engine thread and the asyncio side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class FinishReason(StrEnum):
    """Why a request ended; the values are the wire names."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    ERROR = "error"


class TokenLogprobs(NamedTuple):
    """Natural logarithms of probabilities at one token's place, from the model's logits as they are."""

    logprob: float  # of the token itself
    rank: int  # of the token among all, from 1
    top: list[tuple[int, float]]  # the best tokens, best first, as many as the request asks for
    listed: list[float]  # of its `logprob_token_ids`, in their order


class TokenEvent(NamedTuple):
    """What happened to one request since its stream was last read; several steps may be merged."""

    token_ids: list[int]  # committed output tokens; the end-of-sequence or stop token is the last where it ended it
    finish_reason: FinishReason | None  # set on the last event and on no other
    num_cached_tokens: int  # prompt tokens that came from the prefix cache
    error: str | None = None  # why, where finish_reason is ERROR
    logprobs: list[TokenLogprobs] | None = None  # of each of the token ids; None where not asked for
    # In the first event with tokens, where asked for: of each of the prompt's tokens, None of the first.
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    is_dead_end: bool = False  # the error follows from the request's own parameters


# Called with a stage ("load weights", "compile"), what is done and what there is to do.
Progress = Callable[[str, int, int], None]

# One event of the Trace Event Format (Perfetto, chrome://tracing), as plain data for a JSON encoder.
TraceEvent = dict[str, Any]


class EngineError(RuntimeError):
    """The engine has failed or has been shut down; nothing will be answered any more."""


class EngineStalled(EngineError):
    """A step stands still for longer than it may; the engine is given up."""


class DeadEnd(EngineError):
    """One request cannot go on, because of what it asks for itself; the engine can."""


class QueueFull(RuntimeError):
    """The waiting queue is at its limit; try again later."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the start and gauges of this moment, read without a lock."""

    num_running: int = 0
    num_waiting: int = 0
    num_steps: int = 0
    num_prompt_tokens: int = 0  # prompt tokens of admitted requests
    num_generation_tokens: int = 0  # committed output tokens
    num_preemptions: int = 0
    num_pages: int = 0  # all but the null page
    num_free_pages: int = 0
    num_cached_pages: int = 0
    num_active_pages: int = 0
    prefix_cache_queries: int = 0  # prompt tokens looked up
    prefix_cache_hits: int = 0  # prompt tokens found
    compiles_after_ready: int = 0
    device_busy_seconds: float = 0.0
    device_idle_seconds: float = 0.0  # between steps while work waited; an upper bound
    device_idle_fraction: float = 0.0  # idle / (idle + busy) over the last steps, 0 to 1

    @property
    def kv_cache_usage(self) -> float:
        """Share of the pages that running requests hold, 0 to 1."""
        return self.num_active_pages / self.num_pages if self.num_pages else 0.0
