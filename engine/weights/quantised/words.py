"""Numbers of 4 and 8 bits that checkpoints pack into int32."""

from __future__ import annotations

import numpy as np

# Of the eight nibbles of a word of AWQ, from the lowest on: which of eight neighbouring outputs each one belongs to
# (Lin et al., "AWQ", 2023, as the AutoAWQ project packs them).
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """uint8[..., numbers] of int32[..., words], whose lowest bits hold the first number.

    Args:
        bits: of a number, 4 or 8.
    """
    numbers = np.ascontiguousarray(words, "<i4").view(np.uint8)
    if bits == 8:
        return numbers
    nibbles = np.empty((*numbers.shape, 2), np.uint8)
    np.bitwise_and(numbers, 15, out=nibbles[..., 0])
    np.right_shift(numbers, 4, out=nibbles[..., 1])
    return nibbles.reshape(*numbers.shape[:-1], -1)


def unpacked_awq(words: np.ndarray) -> np.ndarray:
    """uint8[rows, outputs] of int32[rows, outputs / 8] in AWQ's order."""
    in_words = unpacked(words, 4).reshape(words.shape[0], -1, 8)
    numbers = np.empty_like(in_words)
    numbers[..., AWQ_ORDER] = in_words
    return numbers.reshape(words.shape[0], -1)
