"""What a commit has to tell a reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.border.types import FinishReason
from engine.schedule.request import Request


@dataclass(slots=True)
class StepEvent:
    """What a commit has to tell one request's reader."""

    request: Request
    token_ids: Sequence[int]
    finish_reason: FinishReason | None
    error: str | None = None
    logprobs: np.ndarray | None = None  # int32[len(token_ids), NUM_COLUMNS]; None where not asked for
    is_dead_end: bool = False  # the error follows from the request's own parameters
    prompt_logprobs: list[np.ndarray] | None = None  # pieces of the same, of the prompt but for its first token
