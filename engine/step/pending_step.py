"""A step on its way through the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.schedule.plan import StepPlan
from engine.step.batch import HostStep

if TYPE_CHECKING:  # for names of types alone; what handles steps on the host need not load it
    import jax


@dataclass(slots=True)
class PendingStep:
    """A dispatched step: its plan, and its tokens on their way to the host."""

    plan: StepPlan
    step: HostStep
    logits: jax.Array | None = None  # until it samples
    # int32[num_sampled_rows], or [num_repeats, num_sampled_rows], or of Level.FULL [num_sampled_rows, NUM_COLUMNS];
    # an output of its own, never donated. None while its masks are awaited.
    out: jax.Array | None = None
    scores: list[jax.Array] = field(default_factory=list)  # of each scored tile, int32[TILE_SIZE, NUM_COLUMNS]
