"""The events of one step, or one turn of the engine loop, for the requests' streams."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.interface.types import FinishReason, PromptProgress
from engine.schedule.request import Request


@dataclass(slots=True)
class RequestEvent:
    """New tokens of one request, its end, or both; an abort, a timeout or a failure has no tokens."""

    request: Request
    token_ids: Sequence[int]  # output tokens that this commit added
    finish_reason: FinishReason | None  # set on the request's last event and on no other
    error: str | None = None
    logprobs: np.ndarray | None = None  # int32[len(token_ids), NUM_COLUMNS]; None unless the request asks for them
    is_dead_end: bool = False  # the error follows from the request's own parameters
    # One array for each computed piece of the prompt, laid out as `logprobs`. The first prompt token has no logprobs.
    prompt_logprobs: list[np.ndarray] | None = None
    pooled: np.ndarray | None = None  # float32[hidden], of a request with a pooling whose prompt is computed
    progress: PromptProgress | None = None  # of a request that still waits for its first token


@dataclass(slots=True)
class NewTokens:
    """One new token and no other change for each of several requests: one object for nearly all rows of a step."""

    requests: list[Request]
    tokens: list[int]


StepEvent = RequestEvent | NewTokens
