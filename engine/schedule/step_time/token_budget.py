"""The token budget that prompts have in one step."""

from collections.abc import Callable
from math import inf

from engine.schedule.step_time.step_costs import StepCosts, StepWork

_MOST_PER_TOKEN = 2.0  # how much longer a piece of a tile may take for each of its tokens than the whole tile
_LEAST_SAVED = 1 / 3  # of the tile's time, by a piece that does not keep the limit either


class TokenBudget:
    """How many more tokens of prompts a step may compute, by their number and by the time that they take.

    Decode rows cost no tokens. A chunk costs the tokens of its whole tiles (`chunk_alignment`), to which the device
    pads it, and the time of its pieces of `grain` tokens. Of the step's first tile one piece is granted, however long
    it takes, so that prompts do not starve; and all of it where pieces save too little.
    """

    __slots__ = ("_chunk_alignment", "_costs", "_first_limit", "_grain", "_limit", "is_exhausted", "num_left", "work")

    def __init__(
        self, num_tokens: int, chunk_alignment: int, work: StepWork, limit: float = inf, costs: StepCosts | None = None,
        *, grain: int | None = None, first_limit: Callable[[StepWork, bool], float] | None = None,
    ) -> None:  # fmt: skip
        """Makes a budget of which nothing is spent.

        Args:
            work: of the step so far.
            limit: milliseconds for the whole step; infinite for none.
            costs: predict how long the step takes; needed with a limit.
            grain: tokens of a tile that the device computes together, a divisor of `chunk_alignment`; None: all.
            first_limit: from decode rows, and whether they are those of other tenants, milliseconds for a step with a
                part of its first tile. None: the tile stays whole.
        """
        self.num_left = num_tokens
        self.is_exhausted = False  # once a request has got less than it can use
        self.work = work
        self._chunk_alignment = chunk_alignment
        self._limit = limit
        self._first_limit = first_limit
        self._grain = chunk_alignment if grain is None else grain
        self._costs = costs

    @property
    def num_tiles_left(self) -> int:
        """Tiles that fit into the number of tokens."""
        return self.num_left // self._chunk_alignment

    def take(self, num_tokens: int, start: int, others: StepWork | None = None) -> int:
        """Spends what can be afforded of a request's `num_tokens` tokens at position `start`; returns how many.

        A chunk that does not fit is cut at a multiple of the alignment, and the step's first tile at one of the grain.
        `others` are the decode rows of the other tenants, where the request has to make room for them.
        """
        num_taken = self._take_row(start) if num_tokens == 1 else self._take_tiles(num_tokens, start, others)
        self.is_exhausted |= num_taken < num_tokens
        return num_taken

    def take_whole(self, num_tokens: int) -> int:
        """Spends a text that one step has to compute as a whole, or returns 0; the first of a step always fits.

        It costs its tokens, padded to the grain.
        """
        pieces, size = -(-num_tokens // self._grain), self._chunk_alignment
        cost = pieces * self._grain
        if self.work.num_tiles and cost > self.num_left:
            self.is_exhausted = True
            return 0
        self.num_left = max(0, self.num_left - cost)
        work = self.work
        self.work = work._replace(
            num_tiles=work.num_tiles + cost / size, tile_context=work.tile_context + num_tokens * cost / size
        )
        return num_tokens

    def _take_row(self, start: int) -> int:
        work = self.work
        self.work = work._replace(num_decode_rows=work.num_decode_rows + 1, decode_context=work.decode_context + start)
        return 1

    def _take_tiles(self, num_tokens: int, start: int, others: StepWork | None) -> int:
        size, num_taken = self._chunk_alignment, 0
        while num_taken < num_tokens and self.num_left >= size:
            count = min(size, num_tokens - num_taken)
            if self.work.num_tiles == 0:
                count = self._part_of_first_tile(count, start, others)
            grown = self._with_tile(count, start + num_taken + count)
            if self.work.num_tiles and not self._is_affordable(grown):
                break
            self.work = grown
            self.num_left -= size
            num_taken += count
            if count < size:
                break
        return num_taken

    def _with_tile(self, count: int, end: int) -> StepWork:
        """The work with one more tile of so many tokens."""
        grain = self._grain
        return self.work.with_tile(end, -(-count // grain) * grain / self._chunk_alignment)

    def _part_of_first_tile(self, count: int, start: int, others: StepWork | None) -> int:
        """How many of the tokens of the step's first tile to compute: the most that keep the limit.

        Pieces that cost more than `_MOST_PER_TOKEN` times as much for each token as the whole tile are not considered.
        If none keeps the limit, the smallest is taken if it saves `_LEAST_SAVED` of the tile's time; else the whole
        tile is.
        """
        if self._first_limit is None or self._costs is None or not self._costs.has_seen_tiles:
            return count
        limit = self._first_limit(self.work if others is None else others, others is not None)
        whole, without = self._milliseconds(count, start), self._costs.predict(self.work)
        # Beside streams of its own tenant the time of their rows counts too; beside those of other tenants only the
        # tile's: the prompt has to make room for them, however much longer it waits.
        beside = 0.0 if others is None else without
        took, size = whole, count
        while took > limit and size > self._grain:
            fewer = (size - 1) // self._grain * self._grain
            milliseconds = self._milliseconds(fewer, start)
            if (milliseconds - beside) * count > _MOST_PER_TOKEN * (whole - beside) * fewer:
                break
            took, size = milliseconds, fewer
        return size if took <= max(limit, whole - _LEAST_SAVED * (whole - without)) else count

    def _milliseconds(self, count: int, start: int) -> float:
        """The predicted duration of the step with so many tokens of its first tile."""
        assert self._costs is not None
        return self._costs.predict(self._with_tile(count, start + count))

    def _is_affordable(self, work: StepWork) -> bool:
        if self._limit == inf or self._costs is None:
            return True
        return self._costs.has_seen_tiles and self._costs.predict(work) <= self._limit
