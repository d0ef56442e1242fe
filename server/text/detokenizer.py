"""Incremental detokenising: token ids become text as they arrive."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Collection, Sequence
from typing import Protocol

from server.text.tokenizer import Tokenizer


class HasTokenBytes(Protocol):
    """The part of a `Tokenizer` that a detokenizer needs."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...


class HasTokenTexts(HasTokenBytes, Protocol):
    """The part of a `Tokenizer` that tells tokens by their texts."""

    def token_text(self, token_id: int) -> str: ...


def token_text_alone(tokenizer: HasTokenTexts, token_id: int) -> str:
    """What a token stands for by itself: U+FFFD for bytes that are no UTF-8, the name of a control token."""
    data = tokenizer.token_bytes[token_id]
    return data.decode("utf-8", errors="replace") if data else tokenizer.token_text(token_id)


class IncrementalDetokenizer:
    """Turns the tokens of one output into text, and never emits half a character.

    However the tokens are split into calls, all pieces and the flush together equal `Tokenizer.decode` of
    all tokens. Bytes that may still become a character wait for more; bytes that cannot become U+FFFD at once.

        detokenizer = IncrementalDetokenizer(tokenizer)
        text = detokenizer.decode(event.token_ids)
        rest = detokenizer.flush()

    A token costs one look-up in a table.
    """

    __slots__ = ("_rest", "_token_bytes")

    def __init__(self, tokenizer: HasTokenBytes) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._rest = b""  # the bytes of an incomplete character

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; it may be empty, and control tokens have none.

        Raises:
            IndexError: a token id is outside the vocabulary.
        """
        table = self._token_bytes
        if len(token_ids) == 1:
            data = self._rest + table[token_ids[0]]
        else:
            data = self._rest + b"".join([table[token_id] for token_id in token_ids])
        text, num_decoded = utf_8_decode(data, "replace", False)
        self._rest = data[num_decoded:]
        return text

    def flush(self) -> str:
        """U+FFFD if the output ended within a character, else ""; call it once, after the last token."""
        rest, self._rest = self._rest, b""
        return rest.decode("utf-8", errors="replace")


class VisibleControlTokens:
    """The tokens of a model, of which some control tokens stand for their names."""

    def __init__(self, tokenizer: Tokenizer, token_ids: Collection[int]) -> None:
        table = list(tokenizer.token_bytes)
        for token_id in token_ids:
            table[token_id] = tokenizer.token_text(token_id).encode()
        self._tokenizer = tokenizer
        self._token_bytes = table

    @property
    def token_bytes(self) -> Sequence[bytes]:
        return self._token_bytes

    def token_text(self, token_id: int) -> str:
        """As `Tokenizer.token_text`."""
        return self._tokenizer.token_text(token_id)


def show_control_tokens(tokenizer: Tokenizer, names: Collection[str]) -> HasTokenTexts:
    """A view of the tokens in which control tokens of these names have text; without any, `tokenizer` itself."""
    ids = tokenizer.control.ids
    hidden = [ids[name] for name in names if name in ids and not tokenizer.token_bytes[ids[name]]]
    return VisibleControlTokens(tokenizer, hidden) if hidden else tokenizer
