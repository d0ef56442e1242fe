"""What the engine needs of a grammar: which token may come next, and which one came."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class GrammarError(RuntimeError):
    """A grammar that cannot go on: a token it does not allow, or a state too complex for its limits."""


class TokenMatcher(Protocol):
    """One output on its way through a grammar. Used by the engine thread alone."""

    @property
    def ends_output(self) -> bool:
        """Whether the grammar has an end, which ends the output whatever else is asked for."""

    def accept(self, token_id: int) -> None:
        """Moves on by a token of the output.

        Raises:
            GrammarError: the grammar does not allow it.
        """

    def fill_mask(self, words: np.ndarray) -> None:
        """Writes the tokens that may come next into a row of packed bits, uint32[num_words].

        Token t is bit t % 32 of word t // 32. Where the grammar is at its end, these are the
        model's end tokens.

        Raises:
            GrammarError: finding them takes more than the limits allow.
        """
