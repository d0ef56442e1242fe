"""Text to token ids and back, by the vocabulary of the loaded model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from server.byte_level_bpe import ByteLevelBpe
from server.gguf_metadata import GgufError, GgufMetadata, TokenType
from server.sentencepiece_bpe import SentencePieceBpe

# Control tokens that end an output in the models that have them, whether or not the file says so.
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


class _Vocabulary(Protocol):
    add_bos_token: bool
    token_bytes: list[bytes]

    def encode(self, text: str) -> list[int]: ...


class Tokenizer:
    """The model's tokenizer.

    `token_bytes[token_id]` is what a token stands for in a text: part of its UTF-8, perhaps less
    than a character; empty for control tokens.

    Raises:
        GgufError: a kind of vocabulary, or a way of splitting texts, that is not supported.
    """

    def __init__(self, metadata: GgufMetadata) -> None:
        self._vocabulary = _make_vocabulary(metadata)
        self._tokens = metadata.tokens
        self.token_bytes = self._vocabulary.token_bytes
        self.vocab_size = len(metadata.tokens)
        # Bytes of text that one token can stand for at most; a control token's name is text too.
        self.max_token_bytes = max(len(text) for text in (*self.token_bytes, *(name.encode() for name in self._tokens)))
        self.bos_token_id = metadata.bos_token_id
        self.eos_token_id = metadata.eos_token_id
        self.add_bos_token = self._vocabulary.add_bos_token and metadata.bos_token_id is not None
        self.eos_token_ids = _end_token_ids(metadata)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`.

        Names of control tokens in the text become those tokens. `add_special_tokens` puts the
        begin-of-sequence token first if the model wants one; a rendered chat template has its own.

        Raises:
            ValueError: the text is not Unicode (it holds half of a surrogate pair).
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"the text holds a lone surrogate at position {error.start}") from error
        token_ids = self._vocabulary.encode(text)
        if add_special_tokens and self.add_bos_token and self.bos_token_id is not None:
            return [self.bos_token_id, *token_ids]
        return token_ids

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


def _make_vocabulary(metadata: GgufMetadata) -> _Vocabulary:
    match metadata.tokenizer_model:
        case "gpt2":
            return ByteLevelBpe(metadata)
        case "llama":
            return SentencePieceBpe(metadata)
    raise GgufError(
        f"the tokenizer {metadata.tokenizer_model!r} (tokenizer.ggml.model) is not supported; "
        "supported are gpt2 (byte-level BPE) and llama (SentencePiece)"
    )


def _end_token_ids(metadata: GgufMetadata) -> tuple[int, ...]:
    """Tokens that end an output: the file's end tokens first, then those known by name."""
    stated = (metadata.eos_token_id, metadata.eot_token_id, metadata.eom_token_id)
    named = (
        token_id
        for token_id, (token, token_type) in enumerate(zip(metadata.tokens, metadata.token_types, strict=True))
        if token_type == TokenType.CONTROL and token in END_TOKENS
    )
    return tuple(dict.fromkeys([token_id for token_id in stated if token_id is not None] + list(named)))
