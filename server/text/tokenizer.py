"""Text to token ids and back, by the vocabulary of the loaded model."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Protocol

from engine.border.errors import ModelError
from server.text.byte_level_bpe import ByteLevelBpe
from server.text.control_tokens import END_TOKENS, ControlTokens, Part, ShieldedText, without_mark
from server.text.gguf_metadata import GgufMetadata, TokenType
from server.text.sentencepiece_bpe import SentencePieceBpe

_REMEMBERED_SEARCHES = 64
_USUAL_CHARS = 4  # of a token


class Vocabulary(Protocol):
    """The model's tokens, and how a text is split into them."""

    @property
    def tokens(self) -> Sequence[str]:
        """Every token as the vocabulary writes it, by token id."""
        ...

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """What each token stands for in a text, by token id."""
        ...

    @property
    def control(self) -> ControlTokens:
        """The control tokens that `encode` finds in a text."""
        ...

    def encode(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Token ids of `text`; names of control tokens in it become those tokens.

        Raises:
            TooManyTokens: there are more than `max_tokens`.
            NativeFailure: a native library fails.
        """
        ...

    def encode_parts(self, parts: Iterable[Part], mark: str, max_tokens: int | None = None) -> list[int]:
        """Token ids of texts and control tokens in a row; no text of them becomes a control token.

        Args:
            mark: one of `control_tokens.MARKS` that is in none of the texts.

        Raises:
            TooManyTokens, NativeFailure: as `encode`.
        """
        ...


class Tokenizer:
    """The model's tokenizer.

    `token_bytes[token_id]` is what a token stands for in a text: part of its UTF-8, perhaps less
    than a character; empty for control tokens.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        prefix_ids: tuple[int, ...] = (),
        suffix_ids: tuple[int, ...] = (),
        vocab_size: int = 0,
    ) -> None:
        """
        Args:
            eos_token_ids: any of them ends an output.
            prefix_ids: what the model wants before every text: its begin-of-sequence token.
            suffix_ids: what it wants after every text.
            vocab_size: of the model's matrices; tokens that only they know stand for no text.
        """
        num_unknown = max(0, vocab_size - len(vocabulary.tokens))
        self._vocabulary = vocabulary
        self._tokens = [*vocabulary.tokens, *[""] * num_unknown]
        self.token_bytes = [*vocabulary.token_bytes, *[b""] * num_unknown]
        self.vocab_size = len(self._tokens)
        # Bytes of text that one token can stand for at most; a control token's name is text too.
        self.max_token_bytes = max(len(text) for text in (*self.token_bytes, *(name.encode() for name in self._tokens)))
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self._prefix_ids, self._suffix_ids = list(prefix_ids), list(suffix_ids)
        # On the instance, so that it goes when the tokenizer goes.
        self._remembered_ids_with = lru_cache(maxsize=_REMEMBERED_SEARCHES)(self._find_ids_with)

    @classmethod
    def from_gguf(cls, metadata: GgufMetadata) -> Tokenizer:
        """
        Raises:
            ModelError: a kind of vocabulary, or a way of splitting texts, that is not supported.
        """
        bos_token_id = metadata.bos_token_id
        vocabulary, adds_bos_token = _gguf_vocabulary(metadata)
        stated = (metadata.eos_token_id, metadata.eot_token_id, metadata.eom_token_id)
        control_ids = [token_id for token_id, kind in enumerate(metadata.token_types) if kind == TokenType.CONTROL]
        return cls(
            vocabulary,
            bos_token_id=bos_token_id,
            eos_token_ids=end_token_ids(stated, metadata.tokens, control_ids),
            prefix_ids=(bos_token_id,) if adds_bos_token and bos_token_id is not None else (),
        )

    @property
    def add_bos_token(self) -> bool:
        """Whether texts begin with the begin-of-sequence token."""
        return self.bos_token_id is not None and self._prefix_ids[:1] == [self.bos_token_id]

    @property
    def control(self) -> ControlTokens:
        """The control tokens that `encode` finds in a text."""
        return self._vocabulary.control

    def encode(self, text: str, *, add_special_tokens: bool, max_tokens: int | None = None) -> list[int]:
        """Token ids of `text`.

        Names of control tokens in the text become those tokens. `add_special_tokens` puts what the
        model wants around a text there, the begin-of-sequence token above all; a rendered chat
        template has its own.

        Args:
            max_tokens: the most tokens that are of use. Without it, a text of millions of tokens
                keeps other threads from running for a tenth of a second, while its list is made.

        Raises:
            TooManyTokens: the text itself has more than `max_tokens`.
            ValueError: the text is not Unicode (it holds half of a surrogate pair).
            NativeFailure: a native library fails on the text.
        """
        _check_unicode(text)
        self.refuse_far_too_long(text, max_tokens)
        token_ids = self._vocabulary.encode(text, max_tokens)
        return [*self._prefix_ids, *token_ids, *self._suffix_ids] if add_special_tokens else token_ids

    def encode_shielded(self, shielded: ShieldedText, *, max_tokens: int | None = None) -> list[int]:
        """Token ids of a rendered chat template, in which only what the template wrote becomes a control token.

        Raises what `encode` raises.
        """
        text, mark, plain = shielded.text, shielded.mark, shielded.plain
        _check_unicode(plain)
        self.refuse_far_too_long(plain, max_tokens)
        if self.control.is_exact and (
            len(plain) == len(text) or _are_equal(self.control.split(plain), _unmarked(self.control.split(text), mark))
        ):
            return self._vocabulary.encode(plain, max_tokens)  # the messages have written no control token
        return self._vocabulary.encode_parts(_unmarked(self.control.split(text), mark), mark, max_tokens)

    def refuse_far_too_long(self, text: str, max_tokens: int | None) -> None:
        """Refuses a text of whose beginning alone twice too much is left; the rest of it costs nothing then.

        Raises:
            TooManyTokens: so it is.
        """
        if max_tokens is not None and len(text) > _USUAL_CHARS * max_tokens:
            self._vocabulary.encode(text[: _USUAL_CHARS * max_tokens], 2 * max_tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, control tokens left out; U+FFFD where the bytes are no UTF-8.

        Raises:
            IndexError: a token id is not below `vocab_size`.
        """
        table = self.token_bytes
        return b"".join([table[token_id] for token_id in token_ids]).decode("utf-8", errors="replace")

    def count(self, text: str, *, add_special_tokens: bool) -> int:
        """How many tokens `encode` makes of `text`."""
        return len(self.encode(text, add_special_tokens=add_special_tokens))

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary writes it: `<|im_end|>`, `Ġthe`."""
        return self._tokens[token_id]

    def token_ids_with(self, texts: Collection[str]) -> tuple[int, ...]:
        """Tokens that have one of `texts` in their own; that of control tokens is their name.

        A look at the whole vocabulary, some ms long, but for texts that were asked for lately.
        """
        return self._remembered_ids_with(frozenset(texts))

    def _find_ids_with(self, texts: frozenset[str]) -> tuple[int, ...]:
        if not texts:
            return ()
        has_one = re.compile(b"|".join(re.escape(text.encode("utf-8")) for text in sorted(texts))).search
        return tuple(
            token_id
            for token_id, (data, name) in enumerate(zip(self.token_bytes, self._tokens, strict=True))
            if has_one(data or name.encode("utf-8"))
        )


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text holds a lone surrogate at position {error.start}") from error


def _unmarked(parts: Iterable[Part], mark: str) -> Iterator[Part]:
    for part in parts:
        unmarked = part if isinstance(part, int) else without_mark(part, mark)
        if unmarked != "":
            yield unmarked


def _are_equal(left: Iterable[Part], right: Iterable[Part]) -> bool:
    return all(one == other for one, other in zip_longest(left, right))


def end_token_ids(stated: Sequence[int | None], tokens: Sequence[str], control_ids: Collection[int]) -> tuple[int, ...]:
    """Tokens that end an output: those that the model states first, then control tokens known by name."""
    named = (token_id for token_id in sorted(control_ids) if tokens[token_id] in END_TOKENS)
    return tuple(dict.fromkeys([*(token_id for token_id in stated if token_id is not None), *named]))


def _gguf_vocabulary(metadata: GgufMetadata) -> tuple[Vocabulary, bool]:
    """The vocabulary, and whether texts begin with the begin-of-sequence token."""
    match metadata.tokenizer_model:
        case "gpt2":
            vocabulary = ByteLevelBpe(metadata)
            return vocabulary, vocabulary.add_bos_token
        case "llama":
            return SentencePieceBpe.from_gguf(metadata), metadata.add_bos_token is not False
    raise ModelError(
        f"the tokenizer {metadata.tokenizer_model!r} (tokenizer.ggml.model) is not supported; "
        "supported are gpt2 (byte-level BPE) and llama (SentencePiece)"
    )
