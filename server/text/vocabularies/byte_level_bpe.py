"""Byte-level BPE vocabularies, as GPT-2 introduced them, through the `tokenizers` library.

The vocabulary writes every byte as one printable character, so its tokens cover all texts. Models differ
in how a text is split before tokens are merged. A GGUF file names the split in `tokenizer.ggml.pre`; this
module defines the splits as the public tokenizer configurations of the models state them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from engine.border.errors import ModelError
from server.text.vocabularies.control_tokens import Part
from server.text.vocabularies.gguf_metadata import GgufMetadata, TokenType
from server.text.vocabularies.library_encoder import LibraryEncoder


def _gpt2_split() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm_split() -> PreTokenizer:
    return Sequence([Digits(individual_digits=True), _gpt2_split()])


def _llama3_split(max_digits: int) -> PreTokenizer:
    """The split of Llama 3. Qwen 2 uses the same, with another limit for the digits of one piece."""
    alternatives = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}" if max_digits == 1 else rf"\p{{N}}{{1,{max_digits}}}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
    split = Split(Regex("|".join(alternatives)), behavior="isolated")
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How one family of models tokenises, apart from its vocabulary and merges."""

    split: Callable[[], PreTokenizer]
    ignore_merges: bool = False  # a whole piece that is in the vocabulary becomes one token, without merges
    is_nfc: bool = False  # texts are first normalised to Unicode's composed form
    add_bos_token: bool = False  # the default if the file does not say


SCHEMES: Mapping[str, _Scheme] = MappingProxyType(
    {
        "default": _Scheme(_gpt2_split),
        "gpt-2": _Scheme(_gpt2_split),
        "smollm": _Scheme(_smollm_split),
        "llama-bpe": _Scheme(lambda: _llama3_split(max_digits=3), ignore_merges=True, add_bos_token=True),
        "qwen2": _Scheme(lambda: _llama3_split(max_digits=1), is_nfc=True),
    }
)


def byte_of_character() -> dict[str, int]:
    """The inverse of GPT-2's alphabet: the byte that each of its 256 characters stands for.

    A byte that is printable in Latin-1 is written as itself. The others are written, in order, as the
    characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class ByteLevelBpe:
    """A byte-level BPE vocabulary.

    Raises:
        ModelError: the pre-tokenizer of the model is not supported, or its merges are wrong.
    """

    def __init__(self, metadata: GgufMetadata) -> None:
        scheme = SCHEMES.get(metadata.tokenizer_pre)
        if scheme is None:
            raise ModelError(
                f"the pre-tokenizer {metadata.tokenizer_pre!r} (tokenizer.ggml.pre) is not supported; "
                f"supported are {', '.join(SCHEMES)}"
            )
        vocabulary = {token: token_id for token_id, token in enumerate(metadata.tokens)}
        merges = [_pair(merge) for merge in metadata.merges]
        try:
            model = BPE(vocabulary, merges, ignore_merges=scheme.ignore_merges)
        except Exception as error:  # the library raises no narrower type
            raise ModelError(f"the merges (tokenizer.ggml.merges) do not fit the vocabulary: {error}") from error
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = scheme.split()
        if scheme.is_nfc:
            tokenizer.normalizer = NFC()
        whole = {
            vocabulary[token]: AddedToken(token, normalized=False, special=token_type == TokenType.CONTROL)
            for token, token_type in zip(metadata.tokens, metadata.token_types, strict=True)
            if token_type in (TokenType.CONTROL, TokenType.USER_DEFINED) and token
        }
        tokenizer.add_tokens(list(whole.values()))
        control_ids = {vocabulary[metadata.tokens[token_id]] for token_id in metadata.control_ids}
        self._encoder = LibraryEncoder(tokenizer, whole, control_ids)
        self.control = self._encoder.control
        self.add_bos_token = scheme.add_bos_token if metadata.add_bos_token is None else metadata.add_bos_token
        self.tokens = metadata.tokens
        self.token_bytes = _token_bytes(metadata)

    def encode(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Token ids of `text`; names of control tokens in it become those tokens. See `Vocabulary`."""
        return self._encoder.encode(text, max_tokens)

    def encode_parts(self, parts: Iterable[Part], mark: str, max_tokens: int | None = None) -> list[int]:
        """Token ids of `parts`; no text of them becomes a control token. See `Vocabulary`."""
        return self._encoder.encode_parts(parts, mark, max_tokens)


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise ModelError(f"the merge {merge!r} (tokenizer.ggml.merges) is not two tokens with a space between")
    return left, right


def _token_bytes(metadata: GgufMetadata) -> list[bytes]:
    byte_of = byte_of_character()

    def bytes_of(token: str, token_type: int) -> bytes:
        if token_type == TokenType.USER_DEFINED:
            return token.encode("utf-8")
        if token_type != TokenType.NORMAL:
            return b""
        try:
            return bytes([byte_of[character] for character in token])
        except KeyError:  # a token added to the vocabulary as plain text
            return token.encode("utf-8")

    return [
        bytes_of(token, token_type) for token, token_type in zip(metadata.tokens, metadata.token_types, strict=True)
    ]
