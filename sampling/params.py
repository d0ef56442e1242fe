"""What one request asks of the sampler and of its own length."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_STOP_TOKEN_IDS = 64
MAX_SEED = 2**63 - 1


class InvalidParameter(ValueError):
    """A parameter outside its limits; `param` is its wire name."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Frozen and checked at construction, so that everything behind the edge may trust it.

    Raises:
        InvalidParameter: a value is outside its limits; the message names the parameter,
            the value and the limit.
    """

    max_tokens: int = 16
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 keeps the whole vocabulary
    top_p: float = 1.0  # 1 keeps the whole distribution
    min_p: float = 0.0  # relative to the most probable token's probability
    seed: int | None = None  # None: the engine picks one
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidParameter("max_tokens", f"max_tokens is {self.max_tokens}; it must be at least 1")
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= 2.0):
            raise InvalidParameter("temperature", f"temperature is {self.temperature}; it must be from 0 to 2")
        if self.top_k < -1:
            raise InvalidParameter(
                "top_k", f"top_k is {self.top_k}; it must be positive, or 0 or -1 for the whole vocabulary"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidParameter("top_p", f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if not 0.0 <= self.min_p <= 1.0:
            raise InvalidParameter("min_p", f"min_p is {self.min_p}; it must be from 0 to 1")
        if self.seed is not None and not -MAX_SEED - 1 <= self.seed <= MAX_SEED:
            raise InvalidParameter("seed", f"seed is {self.seed}; it must fit in 64 bits")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidParameter(
                "stop_token_ids",
                f"stop_token_ids has {len(self.stop_token_ids)} entries; at most {MAX_STOP_TOKEN_IDS} are allowed",
            )
