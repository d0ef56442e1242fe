"""The step time budget of an engine: how long a step with prompts may take, learned from measured steps."""

from math import inf

from engine.schedule.step_time.step_costs import StepCosts, StepWork
from engine.schedule.step_time.token_budget import TokenBudget

_QUANTILE = 0.99  # of the steps that shall stay within the target
_STEP_UP = 0.05  # how far one step beyond the margin raises it
_MAX_MARGIN = 1.5
_MEMORY = 0.98  # the averages are of about the last 50 steps
_USUAL = 0.3  # difference between measured and predicted, as a share; beyond it a step is learned from at once
_MAX_UNLEARNED = 3  # usual steps left out between two that are learned from: learning is work for the host
_MAX_STRETCH = 2.0  # how much longer the first tile may make a step than the decode rows alone
_MAX_OTHERS_STRETCH = 1.6  # of a tile and the rows of other tenants: measured steps are longer than predicted ones
_MAX_PATIENT_STRETCH = 1.4  # of a patient prompt


class StepTimeBudget:
    """Makes the budget of each step, and learns from each step's duration. Only the engine thread changes it.

    The gap between two tokens of a stream is as long as the step between them. So a step with decode rows takes as many
    tiles of prompts as fit into the target, but at least a part of one, or prompts would starve. Where the device
    computes no padding the first tile is cut to pieces, of which no more are taken than fit into the target or make the
    step twice as long as its decode rows alone, whichever is longer: first tokens come at most twice as late as with
    whole tiles. Beside streams of other tenants only their rows count, and a tile may make the step 1.6 times as long
    as those. A patient prompt, which becomes an embedding or a score or is less urgent than a row, makes a step at most
    1.4 times as long as its decode rows, or has one piece in it. `TokenBudget` takes a larger piece where small ones
    save little. The margin to the target follows the quantile of measured over predicted durations (stochastic
    approximation: Robbins and Monro, 1951), because the slowest steps in a hundred exceed a mean prediction.
    """

    def __init__(self, target_gap: float = 0.0, grain: int | None = None) -> None:
        """Makes a budget that knows nothing of the machine yet.

        `target_gap` is in milliseconds, 0 for throughput; `grain` is the tokens of a tile that the device computes
        together, None for all of them, padding too.
        """
        self.target_gap = target_gap
        self._grain = grain
        self.costs = StepCosts()
        self._margin = 1.0
        self._error = 0.0
        self._prompt_ms = 0.0
        self._total_ms = 0.0
        self._num_unlearned = 0  # steps since the last that the costs learned from

    @property
    def step_time_error(self) -> float:
        """The error of predictions: |measured - predicted| / measured, averaged over the last steps."""
        return self._error

    @property
    def prompt_share(self) -> float:
        """Share of the last steps' time that their tiles of prompts account for, 0 to 1."""
        return self._prompt_ms / self._total_ms if self._total_ms else 0.0

    def budget(self, num_tokens: int, chunk_alignment: int, work: StepWork) -> TokenBudget:
        """The budget for at most `num_tokens` of prompts, in a step that has the decode rows in `work`."""
        if not (self.target_gap and work.num_decode_rows):
            return TokenBudget(num_tokens, chunk_alignment, work, inf, self.costs, grain=self._grain)
        return TokenBudget(
            num_tokens, chunk_alignment, work, self.target_gap / self._margin, self.costs,
            grain=self._grain, first_limit=self._longest_with_tile,
            patient_limit=_MAX_PATIENT_STRETCH * self.costs.predict(work),
        )  # fmt: skip

    def _longest_with_tile(self, rows: StepWork, of_other_tenants: bool) -> float:
        """Milliseconds that a step with a tile, or a part of one, may be predicted to take beside these rows."""
        stretch = _MAX_OTHERS_STRETCH if of_other_tenants else _MAX_STRETCH
        return max(self.target_gap / self._margin, stretch * self.costs.predict(rows))

    def learn(self, work: StepWork, seconds: float) -> None:
        """Learns from the duration of a step.

        Of steps that only decode, one in four is used. Which one does not depend on its duration, or predictions would
        lean towards the steps that were far off.
        """
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
        is_usual = not work.num_tiles and abs(measured - predicted) <= _USUAL * measured
        if is_usual and self._num_unlearned < _MAX_UNLEARNED:
            self._num_unlearned += 1
            return
        self._num_unlearned = 0
        self.costs.learn(work, measured)
