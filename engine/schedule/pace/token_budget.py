"""The budget that prompts have in one step."""

from __future__ import annotations

from math import inf

from engine.schedule.pace.step_costs import StepCosts
from engine.schedule.pace.step_work import StepWork


class TokenBudget:
    """How many more tokens of prompts a step may compute, by their number and by the time that they take.

    A request with a single token left is a decode row, of which there is one for each slot: it costs no tokens here.
    The device pads each chunk of more than one token to whole tiles of `chunk_alignment` tokens, so a chunk costs its
    padded length. The step's first tile is always granted, however long it takes, so that prompts
    do not starve.
    """

    __slots__ = ("_chunk_alignment", "_costs", "_limit", "is_exhausted", "num_left", "work")

    def __init__(
        self, num_tokens: int, chunk_alignment: int, work: StepWork, limit: float = inf, costs: StepCosts | None = None
    ) -> None:
        """Makes a budget of which nothing is spent.

        Args:
            work: of the step so far.
            limit: milliseconds for the whole step; infinite for none.
            costs: predict how long the step takes; needed with a limit.
        """
        self.num_left = num_tokens
        self.is_exhausted = False  # once a request has got less than it can use
        self.work = work
        self._chunk_alignment = chunk_alignment
        self._limit = limit
        self._costs = costs

    @property
    def num_tiles_left(self) -> int:
        """Tiles that fit into the number of tokens."""
        return self.num_left // self._chunk_alignment

    def take(self, num_tokens: int, start: int) -> int:
        """Spends what can be afforded of a request's tokens.

        Args:
            num_tokens: how many there are to compute, at least 1.
            start: the position of the first of them.

        Returns:
            How many tokens of them to compute; a chunk that does not fit is cut at a multiple of the alignment.
        """
        num_taken = self._take_row(start) if num_tokens == 1 else self._take_tiles(num_tokens, start)
        self.is_exhausted |= num_taken < num_tokens
        return num_taken

    def _take_row(self, start: int) -> int:
        work = self.work
        self.work = work._replace(num_decode_rows=work.num_decode_rows + 1, decode_context=work.decode_context + start)
        return 1

    def _take_tiles(self, num_tokens: int, start: int) -> int:
        size, num_taken = self._chunk_alignment, 0
        while num_taken < num_tokens and self.num_left >= size:
            end = min(num_taken + size, num_tokens)
            grown = self.work.with_tile(start + end)
            if not self._is_affordable(grown):
                break
            num_taken, self.work = end, grown
            self.num_left -= size
        return num_taken

    def _is_affordable(self, work: StepWork) -> bool:
        if self._limit == inf or work.num_tiles == 1 or self._costs is None:
            return True
        return self._costs.has_seen_tiles and self._costs.predict(work) <= self._limit
