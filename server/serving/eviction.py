"""Chooses which models make room for another one: those that are used the least, and no more than must go."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp2
from typing import Generic, NamedTuple, TypeVar

# Requests of all models after which a use counts half. It weighs how often a model was used against how long ago: with
# a short one this is the order of least recent use, which brings in models again that are used all the time.
HALF_LIFE = 64.0

Model = TypeVar("Model")


class Candidate(NamedTuple, Generic[Model]):
    """A model that may go, and the bytes that it gives back."""

    model: Model
    num_bytes: int


class Uses(Generic[Model]):
    """How much each model is used: the number of its requests, of which older ones count less."""

    def __init__(self) -> None:
        self._num_requests = 0
        self._scores: dict[Model, tuple[float, int]] = {}  # and the number of requests when it was the latest

    def count(self, model: Model) -> None:
        """Counts a request for the model."""
        self._num_requests += 1
        self._scores[model] = (self.of(model) + 1.0, self._num_requests)

    def of(self, model: Model) -> float:
        """The model's score at this moment."""
        score, counted_at = self._scores.get(model, (0.0, 0))
        return score * exp2((counted_at - self._num_requests) / HALF_LIFE)

    def forget(self, model: Model) -> None:
        self._scores.pop(model, None)

    def choose(self, candidates: Sequence[Candidate[Model]], num_needed: int, bytes_needed: int) -> list[Model]:
        """The models that go so that there are `num_needed` fewer and `bytes_needed` are free; all if that is too few.

        Those that are used the least go first. Then those stay after all that need not have gone, because a larger
        one had to.
        """
        leaving: list[Candidate[Model]] = []
        for candidate in sorted(candidates, key=lambda candidate: self.of(candidate.model)):
            if _is_enough(leaving, num_needed, bytes_needed):
                break
            leaving.append(candidate)
        for candidate in reversed(leaving[:-1]):
            rest = [other for other in leaving if other is not candidate]
            if _is_enough(rest, num_needed, bytes_needed):
                leaving = rest
        return [candidate.model for candidate in leaving]


def _is_enough(leaving: Sequence[Candidate[Model]], num_needed: int, bytes_needed: int) -> bool:
    return len(leaving) >= num_needed and sum(candidate.num_bytes for candidate in leaving) >= bytes_needed
