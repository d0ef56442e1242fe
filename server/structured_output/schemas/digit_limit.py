"""The limit of digits in the numbers of JSON outputs, so that a model that writes digits for ever comes to an end."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np

from sampling.host.grammar import num_words_of, pack_words

MAX_DIGITS = 19  # in a row; as many as 64 bits can need
_LAST_DIGITS = re.compile(rb"[0-9]+$")
_OF_NUMBERS = frozenset(b"0123456789.eE+-,]} \t\r\n")
_BEHIND_NUMBERS = frozenset(b",]} \t\r\n")


class DigitLimit:
    """What the tokens of a vocabulary do to numbers. It is made once for a model."""

    def __init__(self, token_bytes: Sequence[bytes], end_token_ids: Collection[int], vocab_size: int) -> None:
        known = [(at, text) for at, text in enumerate(token_bytes[:vocab_size]) if text]
        words = num_words_of(vocab_size)
        self._digits = pack_words([at for at, text in known if text[:1].isdigit()], words)
        ends = [at for at, text in known if text[0] in _BEHIND_NUMBERS]
        self._ends = pack_words([*ends, *(at for at in end_token_ids if at < vocab_size)], words)
        others = [at for at, text in known if text[0] not in _OF_NUMBERS and at not in end_token_ids]
        self._others = pack_words(others, words)
        # Of tokens that end in digits, how many; negative where they are nothing else.
        self._num_last = {
            at: -len(text) if text.isdigit() else len(match[0])
            for at, text in known
            if text[-1:].isdigit() and (match := _LAST_DIGITS.search(text)) is not None
        }

    def count(self, num_digits: int, token_id: int) -> int:
        """The digits in a row at the output's end, behind a token that follows `num_digits` of them."""
        num_last = self._num_last.get(token_id, 0)
        return num_digits - num_last if num_last < 0 else num_last

    def apply(self, words: np.ndarray) -> None:
        """Takes the digits out of a mask, where the output is in a number that may end here."""
        if not (words & self._others).any() and (words & self._ends).any():
            words &= ~self._digits
