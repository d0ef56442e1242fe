"""A step's plan, which the scheduler gives to the runner, and its result, which comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from engine.schedule.request import Request
from engine.schedule.step_time.step_costs import StepWork


class StateLoad(NamedTuple):
    """A row of a plan begins with the state of a snapshot."""

    row: int
    entry: int  # of the snapshot in the arrays of states


class StateSave(NamedTuple):
    """A row of a plan saves its state in a snapshot."""

    row: int
    end: int  # tokens of the sequence that the state covers
    entry: int


@dataclass(slots=True)
class StepPlan:
    """The requests of one step and the tokens to compute of each, as parallel lists, rows of a single token first.

    A row samples when the step computes the last known token of its request.
    """

    requests: list[Request] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # position of the first token to compute
    num_tokens: list[int] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)
    # Above 1, the device runs this many steps in one program; every row is then a single token that samples.
    num_scheduler_steps: int = 1
    work: StepWork = StepWork()  # what the duration of the step depends on
    loads: list[StateLoad] = field(default_factory=list)  # of models with recurrent layers
    saves: list[StateSave] = field(default_factory=list)

    def add(self, request: Request, start: int, num_tokens: int, samples: bool) -> None:
        self.requests.append(request)
        self.starts.append(start)
        self.num_tokens.append(num_tokens)
        self.samples.append(samples)

    def extend(self, other: StepPlan) -> None:
        self.requests += other.requests
        self.starts += other.starts
        self.num_tokens += other.num_tokens
        self.samples += other.samples

    @property
    def num_rows(self) -> int:
        return len(self.requests)

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(self.num_tokens) * self.num_scheduler_steps


class StepResult(NamedTuple):
    """The tokens that a finished step sampled, and the logprobs that its requests ask for."""

    tokens: list[int]  # one for each row that samples, in the plan's order; for a chunk, one repeat after another
    logprobs: np.ndarray | None = None  # int32[num_sampled_rows, NUM_COLUMNS], as sampling/logprobs.py lays them out
    # For requests with prompt logprobs: int32[num_tokens, NUM_COLUMNS], one line for each prompt token that
    # follows a token computed in this step.
    prompt_logprobs: Mapping[Request, np.ndarray] = MappingProxyType({})
    # Of those with poolings, for each of them what this step adds, piece by piece: float32[num_pieces, hidden], or of
    # Pooling.NONE [num_tokens, hidden].
    pooled: Mapping[Request, Sequence[np.ndarray]] = MappingProxyType({})
