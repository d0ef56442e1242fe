"""The token budget of one step."""

from __future__ import annotations


class TokenBudget:
    """How many more tokens a step may compute.

    The device pads each chunk of more than one token to a multiple of `chunk_alignment` tokens, so a
    chunk costs its padded length.
    """

    __slots__ = ("_chunk_alignment", "num_left")

    def __init__(self, num_tokens: int, chunk_alignment: int) -> None:
        self.num_left = num_tokens
        self._chunk_alignment = chunk_alignment

    def fit(self, num_tokens: int) -> int:
        """How many of `num_tokens` can still be afforded; a chunk that does not fit is cut at a multiple."""
        if num_tokens == 1:
            return 1 if self.num_left >= 1 else 0
        return min(num_tokens, self.num_left // self._chunk_alignment * self._chunk_alignment)

    def spend(self, num_tokens: int) -> None:
        """Pays for a number of tokens that `fit` has returned."""
        padded = -(-num_tokens // self._chunk_alignment) * self._chunk_alignment
        self.num_left -= 1 if num_tokens == 1 else padded
