"""The tokens of a model as bytes, and bit masks over them, for matchers that read text."""

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

import numpy as np

from sampling.host.grammar import num_words_of, pack_words


class TokenTable:
    """The text of each token, including control tokens that mark parts of an output.

    `token_bytes` are by token id, empty without text; `vocab_size` is that of the logits, more or fewer.
    """

    def __init__(self, token_bytes: Sequence[bytes], end_token_ids: Collection[int], vocab_size: int) -> None:
        self._token_bytes = token_bytes
        self.vocab_size = vocab_size
        self.end_token_ids = frozenset(end_token_ids)
        self.everything = self.mask_of(range(vocab_size))

    def __getitem__(self, token_id: int) -> bytes:
        return self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""

    def mask_of(self, token_ids: Iterable[int]) -> np.ndarray:
        """Packed bits of these tokens, uint32[num_words]; tokens beyond the logits have none."""
        listed = [token_id for token_id in token_ids if token_id < self.vocab_size]
        mask = pack_words(listed, num_words_of(self.vocab_size))
        mask.flags.writeable = False  # matchers share it
        return mask

    @cached_property
    def end_mask(self) -> np.ndarray:
        return self.mask_of(self.end_token_ids)

    def ids_with(self, data: bytes) -> list[int]:
        """The tokens whose text holds `data`, ascending. This searches the whole vocabulary."""
        return [token_id for token_id, text in enumerate(self._token_bytes[: self.vocab_size]) if data in text]

    def ids_within(self, texts: Sequence[bytes]) -> list[int]:
        """The tokens whose text is a part of one of `texts`, ascending. This searches the whole vocabulary."""
        known = enumerate(self._token_bytes[: self.vocab_size])
        return [token_id for token_id, data in known if data and any(data in text for text in texts)]

    def spell(self, data: bytes) -> list[int] | None:
        """Tokens of one byte each that together are `data`; None where the vocabulary lacks one of them."""
        found = [self._byte_ids.get(byte) for byte in data]
        return None if None in found else [token_id for token_id in found if token_id is not None]

    @cached_property
    def _byte_ids(self) -> dict[int, int]:
        last_first = range(min(self.vocab_size, len(self._token_bytes)) - 1, -1, -1)
        return {self._token_bytes[i][0]: i for i in last_first if len(self._token_bytes[i]) == 1}
