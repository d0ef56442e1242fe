"""The pace of an engine: how long its steps may take, and how well it knows beforehand how long they will."""

from __future__ import annotations

from math import inf

from engine.schedule.pace.step_costs import StepCosts
from engine.schedule.pace.step_work import StepWork
from engine.schedule.pace.token_budget import TokenBudget

_QUANTILE = 0.99  # of the steps that shall stay within the target
_STEP_UP = 0.05  # how far one step beyond the margin raises it
_MAX_MARGIN = 1.5
_MEMORY = 0.98  # the averages are of about the last 50 steps
_MAX_STRETCH = 2.0  # how much longer a guest may make a step than the target, or than the others' decode rows


class Pace:
    """Makes the budget of each step, and learns from each step's duration. Only the engine thread changes it.

    Streams see a gap between two tokens that is as long as the step between them. So a step in which requests decode
    has a limit: as many tiles of prompts as fit into the target beside the decode rows, but at least one, or prompts
    would starve. Beside streams of other tenants it is cut to pieces, where the device computes no padding: no more of
    them are taken than make the step twice as long as the target or as the others' decode rows alone, whichever is
    longer. So nobody makes others' gaps three or four times as long, and who has many rows in the step already has
    taken a part of that with them. Within a tenant a tile stays whole, because a few tokens take nearly as long, and a
    crowd would wait longer for its first tokens. The margin between what is aimed at and the target follows the
    quantile of measured over predicted durations (stochastic approximation: Robbins and Monro, 1951), because a promise
    for the slowest steps in a hundred cannot be kept by a prediction that is right on average.
    """

    def __init__(self, target_gap: float = 0.0, grain: int | None = None) -> None:
        """Makes a pace that knows nothing of the machine yet.

        Args:
            target_gap: milliseconds; 0: no limit, for throughput.
            grain: tokens of a tile that the device computes together; None: all of them, padding too.
        """
        self.target_gap = target_gap
        self._grain = grain
        self.costs = StepCosts()
        self._margin = 1.0
        self._error = 0.0
        self._prompt_ms = 0.0
        self._total_ms = 0.0

    @property
    def step_time_error(self) -> float:
        """How far predictions are off: |measured - predicted| / measured, averaged over the last steps."""
        return self._error

    @property
    def prompt_share(self) -> float:
        """Share of the last steps' time that their tiles of prompts account for, 0 to 1."""
        return self._prompt_ms / self._total_ms if self._total_ms else 0.0

    def budget(self, num_tokens: int, chunk_alignment: int, work: StepWork) -> TokenBudget:
        """The budget for the prompts of a step.

        Args:
            num_tokens: how many tokens of prompts the step may compute at most.
            work: the decode rows of the step.
        """
        if not (self.target_gap and work.num_decode_rows):
            return TokenBudget(num_tokens, chunk_alignment, work, inf, self.costs, grain=self._grain)
        return TokenBudget(
            num_tokens, chunk_alignment, work, self.target_gap / self._margin, self.costs,
            grain=self._grain, guest_limit=self._longest_beside,
        )  # fmt: skip

    def _longest_beside(self, others: StepWork) -> float:
        """Milliseconds that a step with a guest's prompt may be predicted to take.

        Args:
            others: the decode rows of the other tenants.
        """
        return _MAX_STRETCH * max(self.target_gap, self.costs.predict(others)) / self._margin

    def learn(self, work: StepWork, seconds: float) -> None:
        """Takes note of how long a step took."""
        measured, predicted = 1000 * seconds, self.costs.predict(work)
        if measured <= 0:
            return
        if predicted:
            self._error += (1 - _MEMORY) * (min(abs(measured - predicted) / measured, 1.0) - self._error)
            without = self.costs.predict(StepWork(work.num_decode_rows, work.decode_context)) if work.num_tiles else 0.0
            share = max(1 - without / predicted, 0.0) if work.num_tiles else 0.0
            self._prompt_ms = _MEMORY * self._prompt_ms + share * measured
            self._total_ms = _MEMORY * self._total_ms + measured
            if work.num_tiles and work.num_decode_rows:
                move = _STEP_UP * ((measured > self._margin * predicted) - (1 - _QUANTILE))
                self._margin = min(max(self._margin + move, 1.0), _MAX_MARGIN)
        self.costs.learn(work, measured)
