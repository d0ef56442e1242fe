"""Token ids to text while they arrive."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Protocol


class HasTokenBytes(Protocol):
    """What is needed of a `Tokenizer`: the bytes that each token stands for."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...


class IncrementalDetokenizer:
    """Turns one output's tokens into text, never emitting half a character.

    Whatever the split into calls, the pieces and the flush together are `Tokenizer.decode` of all
    the tokens. Bytes that may yet become a character wait; bytes that cannot are U+FFFD at once.

        detokenizer = IncrementalDetokenizer(tokenizer)
        text = detokenizer.decode(event.token_ids)
        rest = detokenizer.flush()

    Each token costs one look-up in the table.
    """

    __slots__ = ("_rest", "_token_bytes")

    def __init__(self, tokenizer: HasTokenBytes) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._rest = b""  # of a character that is not yet whole

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; "" while a character is incomplete or for control tokens.

        Raises:
            IndexError: a token id is outside the vocabulary.
        """
        table = self._token_bytes
        data = self._rest + b"".join([table[token_id] for token_id in token_ids])
        text, num_decoded = utf_8_decode(data, "replace", False)
        self._rest = data[num_decoded:]
        return text

    def flush(self) -> str:
        """U+FFFD if the output ended within a character, else ""; call it once, at the end."""
        rest, self._rest = self._rest, b""
        return rest.decode("utf-8", errors="replace")
