"""Incremental detokenizing: token ids become text as they arrive."""

from codecs import utf_8_decode
from collections.abc import Collection, Sequence
from typing import Protocol

from server.text.tokenizer import Tokenizer


class HasTokenBytes(Protocol):
    @property
    def token_bytes(self) -> Sequence[bytes]: ...


class HasTokenTexts(HasTokenBytes, Protocol):
    @property
    def eos_token_ids(self) -> Sequence[int]:
        """Any of them ends an output."""

    def token_text(self, token_id: int) -> str: ...


def token_text_alone(tokenizer: HasTokenTexts, token_id: int) -> str:
    """The text of a token by itself: U+FFFD for bytes that are no UTF-8, the name of a control token."""
    data = tokenizer.token_bytes[token_id]
    return data.decode("utf-8", errors="replace") if data else tokenizer.token_text(token_id)


def text_with_names(tokenizer: HasTokenTexts, token_ids: Sequence[int]) -> str:
    """The text of tokens, with the names of control tokens."""
    table = tokenizer.token_bytes
    return b"".join([table[token_id] or tokenizer.token_text(token_id).encode() for token_id in token_ids]).decode(
        errors="replace"
    )


class IncrementalDetokenizer:
    """Turns the tokens of one output into text, and never emits half a character.

    All pieces together equal `Tokenizer.decode` of all tokens, but for half a character at the end. Bytes that may
    still become a character are held back; bytes that cannot are U+FFFD at once.

        detokenizer = IncrementalDetokenizer(tokenizer)
        text = detokenizer.decode(event.token_ids)
    """

    __slots__ = ("_rest", "_token_bytes")

    def __init__(self, tokenizer: HasTokenBytes) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._rest = b""  # the bytes of an incomplete character

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text, perhaps empty, that these tokens complete; raises IndexError for ids outside the vocabulary."""
        table = self._token_bytes
        if len(token_ids) == 1:
            data = self._rest + table[token_ids[0]]
        else:
            data = self._rest + b"".join([table[token_id] for token_id in token_ids])
        text, num_decoded = utf_8_decode(data, "replace", False)
        self._rest = data[num_decoded:]
        return text


class VisibleControlTokens:
    """A view of a tokenizer in which some control tokens have their names as text, because output parsers need them."""

    def __init__(self, tokenizer: Tokenizer, token_ids: Collection[int]) -> None:
        table = list(tokenizer.token_bytes)
        for token_id in token_ids:
            table[token_id] = tokenizer.token_text(token_id).encode()
        self._tokenizer = tokenizer
        self._token_bytes = table

    @property
    def token_bytes(self) -> Sequence[bytes]:
        return self._token_bytes

    @property
    def eos_token_ids(self) -> Sequence[int]:
        return self._tokenizer.eos_token_ids

    def token_text(self, token_id: int) -> str:
        return self._tokenizer.token_text(token_id)


def show_control_tokens(tokenizer: Tokenizer, names: Collection[str]) -> HasTokenTexts:
    """A view of the tokenizer in which control tokens with these names have text; without any, `tokenizer` itself."""
    ids = tokenizer.control.ids
    hidden = [ids[name] for name in names if name in ids and not tokenizer.token_bytes[ids[name]]]
    return VisibleControlTokens(tokenizer, hidden) if hidden else tokenizer
