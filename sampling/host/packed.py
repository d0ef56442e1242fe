"""Sets of tokens as packed bits: token t is bit t % 32 of word t // 32. Host logic, without JAX."""

from __future__ import annotations

from collections.abc import Sequence

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
