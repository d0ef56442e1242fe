"""The tokenizer: turns text into token ids and back, with the vocabulary of the loaded model."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Protocol

from engine.border.errors import ModelError
from server.text.byte_level_bpe import ByteLevelBpe
from server.text.gguf_metadata import GgufMetadata, TokenType
from server.text.sentencepiece_bpe import SentencePieceBpe

# A control token with one of these names ends an output, even if the model's files do not say so.
END_TOKENS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<end_of_turn>",
        "<end_of_utterance>",
    }
)


_REMEMBERED_SEARCHES = 64


class Vocabulary(Protocol):
    """The tokens of a model, and how a text is split into them."""

    @property
    def tokens(self) -> Sequence[str]:
        """Each token as the vocabulary writes it, by token id."""
        ...

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """The bytes of text that each token stands for, by token id; empty for control tokens."""
        ...

    def encode(self, text: str) -> list[int]: ...


class Tokenizer:
    """The tokenizer of a model.

    `token_bytes[token_id]` are the bytes of text that a token stands for. They may be part of a character,
    and they are empty for control tokens.
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
        """Makes a tokenizer for a vocabulary.

        Args:
            eos_token_ids: any of these tokens ends an output.
            prefix_ids: tokens that the model wants before every text, such as a begin-of-sequence token.
            suffix_ids: tokens that the model wants after every text.
            vocab_size: of the model's matrices; token ids beyond the vocabulary stand for no text.
        """
        num_unknown = max(0, vocab_size - len(vocabulary.tokens))
        self._vocabulary = vocabulary
        self._tokens = [*vocabulary.tokens, *[""] * num_unknown]
        self.token_bytes = [*vocabulary.token_bytes, *[b""] * num_unknown]
        self.vocab_size = len(self._tokens)
        # The largest number of bytes that one token can match in a prompt, where names of control tokens count too.
        self.max_token_bytes = max(len(text) for text in (*self.token_bytes, *(name.encode() for name in self._tokens)))
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self._prefix_ids, self._suffix_ids = list(prefix_ids), list(suffix_ids)
        # The cache belongs to the instance, so that it does not keep the tokenizer alive.
        self._remembered_ids_with = lru_cache(maxsize=_REMEMBERED_SEARCHES)(self._find_ids_with)

    @classmethod
    def from_gguf(cls, metadata: GgufMetadata) -> Tokenizer:
        """Makes the tokenizer of a GGUF file.

        Raises:
            ModelError: the kind of vocabulary or its pre-tokenizer is not supported.
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

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; names of control tokens in it become those tokens.

        Args:
            add_special_tokens: whether to add the tokens that the model wants around a text. A rendered chat
                template has them already.

        Raises:
            ValueError: the text is not valid Unicode, because it has half of a surrogate pair.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"the text holds a lone surrogate at position {error.start}") from error
        token_ids = self._vocabulary.encode(text)
        return [*self._prefix_ids, *token_ids, *self._suffix_ids] if add_special_tokens else token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, without control tokens. Bytes that are not UTF-8 become U+FFFD.

        Raises:
            IndexError: a token id is not below `vocab_size`.
        """
        table = self.token_bytes
        return b"".join([table[token_id] for token_id in token_ids]).decode("utf-8", errors="replace")

    def count(self, text: str, *, add_special_tokens: bool) -> int:
        """The number of tokens that `encode` returns."""
        return len(self.encode(text, add_special_tokens=add_special_tokens))

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary writes it, for example `<|im_end|>` or `Ġthe`."""
        return self._tokens[token_id]

    def token_ids_with(self, texts: Collection[str]) -> tuple[int, ...]:
        """The tokens whose text contains one of `texts`; the text of a control token is its name.

        This searches the whole vocabulary. The results of the last searches are kept.
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


def end_token_ids(stated: Sequence[int | None], tokens: Sequence[str], control_ids: Collection[int]) -> tuple[int, ...]:
    """The tokens that end an output: first those that the model states, then control tokens in END_TOKENS."""
    named = (token_id for token_id in sorted(control_ids) if tokens[token_id] in END_TOKENS)
    return tuple(dict.fromkeys([*(token_id for token_id in stated if token_id is not None), *named]))


def _gguf_vocabulary(metadata: GgufMetadata) -> tuple[Vocabulary, bool]:
    """The vocabulary, and whether a text gets a begin-of-sequence token."""
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
