"""The protocol of a runner, which computes steps, and the state of a step on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from engine.schedule.step_plan import StepPlan, StepResult
from engine.step.inputs import StepInputs

if TYPE_CHECKING:  # only types need jax here, so that host logic does not load it
    import jax

    from engine.backends.base.bursts import Burst


@dataclass(slots=True)
class PendingStep:
    """A dispatched step whose result the host does not have yet."""

    plan: StepPlan
    inputs: StepInputs
    logits: jax.Array | None = None  # None once the step has sampled
    # The sampled tokens: int32[num_sampled_rows], or [num_scheduler_steps, num_sampled_rows] for several
    # steps whose tokens come together, or
    # [num_sampled_rows, NUM_COLUMNS] at SamplerVariant.FULL. An array of its own that is never donated; None while the
    # step awaits its masks.
    out: jax.Array | None = None
    scores: list[jax.Array] = field(default_factory=list)  # int32[TILE_SIZE, NUM_COLUMNS] for each scored tile
    pooled: list[jax.Array] = field(default_factory=list)  # float32[hidden] for each pooled tile
    states: jax.Array | None = None  # float32[num_tokens, hidden], of the tokens of an encoder's tiles
    # Of a step of a burst, whose `out` is the number of the burst's steps: it tells of its tokens itself.
    burst: Burst | None = None
    index: int = 0  # of the step in the burst


class Runner(Protocol):
    """Computes steps. The loop calls it from the engine thread alone."""

    @property
    def max_burst_steps(self) -> int:
        """Steps that one program computes at most, with a result of its own for each; 1: there are no bursts."""

    def dispatch(self, plan: StepPlan) -> PendingStep:
        """Enqueues the step and returns without waiting; for a step that awaits masks, the forward pass alone."""

    def dispatch_burst(self, plans: Sequence[StepPlan]) -> list[PendingStep]:
        """As `dispatch`, for the steps of a burst: each decodes the tokens that the one before it samples."""

    def cut(self, pending: PendingStep) -> int:
        """Has the burst of the last step that was dispatched end early; returns how many of its steps fall away.

        Those are the last ones, and the device has not begun them; 0 where it is none of a burst. Whoever planned the
        steps withdraws their plans after this.
        """

    def new_masks(self, pending: PendingStep) -> np.ndarray:
        """Makes masks that allow nothing, uint32[num_rows, num_words]; the first rows are those that sample."""

    def sample(self, pending: PendingStep, masks: np.ndarray) -> None:
        """Enqueues the sampling of a step that awaited masks; the caller must not change the masks any more."""

    def result(self, pending: PendingStep) -> StepResult:
        """Waits for the step."""

    def is_done(self, pending: PendingStep) -> bool:
        """Whether the device has finished the step; does not wait."""
