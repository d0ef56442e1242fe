"""The interface of a grammar's matcher, and sets of tokens as packed bits: token t is bit t % 32 of word t // 32."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

WORD_BITS = 32


def num_words_of(vocab_size: int) -> int:
    """Words of a set of tokens of such a vocabulary."""
    return -(-vocab_size // WORD_BITS)


def pack_words(token_ids: np.ndarray | Sequence[int], num_words: int) -> np.ndarray:
    """The set as uint32[num_words]."""
    bits = np.zeros(num_words * WORD_BITS, np.uint8)
    bits[token_ids] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)


class GrammarError(RuntimeError):
    """A grammar that cannot continue: a token it does not allow, or a state too complex for its limits."""


class TokenMatcher(Protocol):
    """The state of a grammar for one output. Used by the engine thread alone."""

    @property
    def ends_output(self) -> bool:
        """Whether the grammar has an end, which ends the output whatever the parameters are."""

    def accept(self, token_id: int) -> None:
        """Advances by a token of the output; raises GrammarError if the grammar does not allow it."""

    def fill_mask(self, words: np.ndarray) -> None:
        """Writes the tokens that may come next, or end tokens, as bits in uint32[num_words]; raises GrammarError."""
