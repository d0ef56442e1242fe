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

    __slots__ = (
        "_chunk_alignment", "_costs", "_first_limit", "_grain", "_limit", "_patient_limit", "is_exhausted", "num_left",
        "work",
    )  # fmt: skip

    def __init__(
        self, num_tokens: int, chunk_alignment: int, work: StepWork, limit: float = inf, costs: StepCosts | None = None,
        *, grain: int | None = None, first_limit: Callable[[StepWork, bool], float] | None = None,
        patient_limit: float = inf,
    ) -> None:  # fmt: skip
        """Makes a budget of which nothing is spent.

        Args:
            work: of the step so far.
            limit: milliseconds for the whole step; infinite for none.
            costs: predict how long the step takes; needed with a limit.
            grain: tokens of a tile that the device computes together, a divisor of `chunk_alignment`; None: all.
            first_limit: from decode rows, and whether they are those of other tenants, milliseconds for a step with a
                part of its first tile. None: the tile stays whole.
            patient_limit: milliseconds for a step with patient prompts, of which the first piece is granted.
        """
        self.num_left = num_tokens
        self.is_exhausted = False  # once a request has got less than it can use
        self.work = work
        self._chunk_alignment = chunk_alignment
        self._limit = limit
        self._first_limit = first_limit
        self._patient_limit = min(patient_limit, limit)
        self._grain = chunk_alignment if grain is None else grain
        self._costs = costs

    @property
    def num_tiles_left(self) -> int:
        """Tiles that fit into the number of tokens."""
        return self.num_left // self._chunk_alignment

    def take(self, num_tokens: int, start: int, others: StepWork | None = None, *, is_patient: bool = False) -> int:
        """Spends what can be afforded of a request's `num_tokens` tokens at position `start`; returns how many.

        A chunk that does not fit is cut at a multiple of the alignment, and the step's first tile at one of the grain.
        `others` are the decode rows of the other tenants, where the request has to make room for them. A prompt that
        `is_patient` makes room for all of them.
        """
        if num_tokens == 1:
            num_taken = self._take_row(start)
        else:
            num_taken = self._take_tiles(num_tokens, start, others, is_patient=is_patient)
        self.is_exhausted |= num_taken < num_tokens
        return num_taken

    def take_rest(self, num_taken: int, num_tokens: int, start: int) -> bool:
        """Spends what is missing to a chunk that one step has to compute as a whole, however long that takes.

        Args:
            num_taken: what `take` has given of its `num_tokens` tokens at position `start`.

        Returns:
            False where the tokens do not fit into what is left; nothing is spent then.
        """
        size = self._chunk_alignment
        num_tiles, num_more = -(-num_taken // size), -(-num_tokens // size)
        cost = (num_more - num_tiles) * size
        if cost > self.num_left:
            return False
        self.num_left -= cost
        for _ in range(num_more - num_tiles):
            self.work = self._with_tile(size, start + num_tokens)
        return True

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

    def _take_tiles(self, num_tokens: int, start: int, others: StepWork | None, *, is_patient: bool) -> int:
        size, num_taken = self._chunk_alignment, 0
        limit = self._patient_limit if is_patient else self._limit
        while num_taken < num_tokens and self.num_left >= size:
            count = min(size, num_tokens - num_taken)
            if self.work.num_tiles == 0:
                count = self._patient_part(count, start) if is_patient else self._first_part(count, start, others)
            grown = self._with_tile(count, start + num_taken + count)
            if self.work.num_tiles and not self._is_affordable(grown, limit):
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

    def _first_part(self, count: int, start: int, others: StepWork | None) -> int:
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

    def _patient_part(self, count: int, start: int) -> int:
        """How many of the tokens of the step's first tile to compute of a patient prompt: the most in its limit."""
        if self._patient_limit == inf or self._costs is None or not self._costs.has_seen_tiles:
            return count
        while count > self._grain and self._milliseconds(count, start) > self._patient_limit:
            count = (count - 1) // self._grain * self._grain
        return count

    def _milliseconds(self, count: int, start: int) -> float:
        """The predicted duration of the step with so many tokens of its first tile."""
        assert self._costs is not None
        return self._costs.predict(self._with_tile(count, start + count))

    def _is_affordable(self, work: StepWork, limit: float) -> bool:
        if limit == inf or self._costs is None:
            return True
        return self._costs.has_seen_tiles and self._costs.predict(work) <= limit
