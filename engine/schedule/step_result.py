"""What a finished step brings to the host."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from engine.schedule.request import Request


class StepResult(NamedTuple):
    """A step's tokens, and logprobs where a row asks for them."""

    tokens: list[int]  # one for each sampled row, in the plan's order, repeat after repeat
    logprobs: np.ndarray | None = None  # int32[num_sampled_rows, NUM_COLUMNS], as sampling/logprobs.py lays them out
    # The same of the prompt's tokens that follow those computed in this step; of requests that ask for them.
    prompt_logprobs: Mapping[Request, np.ndarray] = MappingProxyType({})
