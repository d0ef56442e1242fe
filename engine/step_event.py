"""What a commit has to tell a reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.request import Request
from engine.types import FinishReason


@dataclass(slots=True)
class StepEvent:
    """What a commit has to tell one request's reader."""

    request: Request
    token_ids: Sequence[int]
    finish_reason: FinishReason | None
    error: str | None = None
