"""A model of step durations on this machine, learned from the steps that it has done."""

from __future__ import annotations

from math import ceil
from operator import mul
from typing import NamedTuple


class StepWork(NamedTuple):
    """The counts that a step's duration is predicted from."""

    num_decode_rows: int = 0
    decode_context: int = 0  # tokens that the decode rows attend to, added up
    num_tiles: float = 0  # where the device computes no padding, a tile that is not full counts as a part of one
    tile_context: float = 0  # tokens that the last token of each tile attends to, added up; of a part of a tile, a part

    def with_tile(self, end: int, share: float = 1) -> StepWork:
        """The same with one more tile, or that share of one, whose last token is the `end`-th of its request."""
        return StepWork(
            self.num_decode_rows, self.decode_context, self.num_tiles + share, self.tile_context + end * share
        )


# Each count is divided by its unit, so that the weights, in milliseconds, are of similar size.
_ROWS, _DECODE_CONTEXT, _TILE_CONTEXT = 8, 4096, 1024
_NUM_WEIGHTS = 6
_BEGUN, _TILE = 2, 3  # the weights of a tile that is begun, however full it is, and of one that is full
_UNKNOWN = 1e4  # variance of a weight of which nothing is known, in ms²
_HARDLY = 0.01  # share of that variance that a begun tile's weight has: before parts of tiles were seen, they are cheap
_NOISE = 0.1  # standard deviation of a step's duration, as a share of it
_DRIFT = 0.02  # the same of a weight's change from one learned step to the next
_LEAST_MS = 0.05  # below this a duration is mostly the clock's and the loop's own
_MAX_SURPRISE = 3.0  # standard deviations; beyond them the measurement is doubted
_RATIO_SHARE = 0.1  # of the newest learned step in the average of its bucket
_MIN_RATIO, _MAX_RATIO = 0.5, 2.0


class StepCosts:
    """Predicts the duration of a step from its work.

    The prediction is a weighted sum (of the step itself, its decode rows, its tiles, and the context of both), times a
    correction for the step's bucket, because cost is not quite linear. A tile has a fixed weight and one for how full
    it is, so that the first part of a tile shows whether parts are cheaper here. A Kalman filter (Kalman, "A New
    Approach to Linear Filtering and Prediction Problems", 1960) estimates the weights, lets them drift with the
    machine, and trusts outliers less. The corrections are exponential averages of bounded steps.
    """

    def __init__(self) -> None:
        self.has_seen_tiles = False  # before, nothing can be said of a step with tiles
        # Lists, because for so few numbers calls of numpy cost more than the arithmetic.
        self._weights = [0.0] * _NUM_WEIGHTS
        self._spread = [[0.0] * _NUM_WEIGHTS for _ in range(_NUM_WEIGHTS)]  # the covariance of the weights
        for index, row in enumerate(self._spread):
            row[index] = _UNKNOWN * (_HARDLY if index == _BEGUN else 1.0)
        self._ratios: dict[tuple[int, int], float] = {}

    def predict(self, work: StepWork) -> float:
        """Milliseconds; 0.0 before the first step was seen."""
        return self._linear(work) * self._ratios.get(_bucket(work), 1.0)

    def learn(self, work: StepWork, milliseconds: float) -> None:
        """Updates the model by the duration of a step."""
        measured = max(milliseconds, _LEAST_MS)
        x = (
            1.0, work.num_decode_rows / _ROWS, ceil(work.num_tiles), work.num_tiles,
            work.decode_context / _DECODE_CONTEXT, work.tile_context / _TILE_CONTEXT,
        )  # fmt: skip
        weights, spread = self._weights, self._spread
        drift = [_DRIFT * weight for weight in weights]
        drift[_BEGUN] = drift[_TILE]  # whole tiles do not show which of the two weights is their cost
        for index, row in enumerate(spread):
            row[index] = min(row[index] + drift[index] ** 2, _UNKNOWN)
        along = [sum(map(mul, row, x)) for row in spread]
        known, noise = sum(map(mul, along, x)), (_NOISE * measured) ** 2
        surprise = measured - sum(map(mul, weights, x))
        limit = _MAX_SURPRISE * (known + noise) ** 0.5
        if abs(surprise) > limit:  # such a step counts as one that was measured badly, so that it teaches little
            noise *= (surprise / limit) ** 2
        variance = known + noise
        gain = [part / variance for part in along]
        self._weights = [weight + surprise * share for weight, share in zip(weights, gain, strict=True)]
        for row, part in zip(spread, along, strict=True):
            row[:] = [entry - part * share for entry, share in zip(row, gain, strict=True)]
        self.has_seen_tiles |= work.num_tiles > 0
        self._correct(work, measured)

    def _correct(self, work: StepWork, measured: float) -> None:
        bucket = _bucket(work)
        ratio = self._ratios.get(bucket, 1.0)
        newest = measured / max(self._linear(work), _LEAST_MS)
        newest = min(max(newest, ratio * (1 - _MAX_SURPRISE * _NOISE)), ratio * (1 + _MAX_SURPRISE * _NOISE))
        ratio += _RATIO_SHARE * (newest - ratio)
        self._ratios[bucket] = min(max(ratio, _MIN_RATIO), _MAX_RATIO)

    def _linear(self, work: StepWork) -> float:
        step, row, begun, tile, decode_context, tile_context = self._weights
        milliseconds = (
            step
            + row / _ROWS * work.num_decode_rows
            + begun * ceil(work.num_tiles)
            + tile * work.num_tiles
            + decode_context / _DECODE_CONTEXT * work.decode_context
            + tile_context / _TILE_CONTEXT * work.tile_context
        )
        return max(milliseconds, 0.0)


def _bucket(work: StepWork) -> tuple[int, int]:
    """Steps of one bucket have similar numbers of decode rows and of tiles, partial ones included."""
    num_tiles = ceil(work.num_tiles)
    return work.num_decode_rows.bit_length(), num_tiles if num_tiles <= 4 else 2 + num_tiles.bit_length()
