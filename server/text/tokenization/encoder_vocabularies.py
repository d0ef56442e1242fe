"""Vocabularies of encoders in GGUF files, rebuilt in the `tokenizers` library, which is their reference.

WordPiece, as BERT introduced it (Devlin et al., 2018): a text is normalised and split into words, and a word into the
longest pieces that the vocabulary has. So tokens do not keep the spaces of a text; the text of a token that begins a
word begins with one. Unigram (Kudo, 2018), as XLM-RoBERTa has it: the likeliest pieces of each word.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import Unigram, WordPiece
from tokenizers.normalizers import BertNormalizer, Precompiled
from tokenizers.pre_tokenizers import BertPreTokenizer, Metaspace, WhitespaceSplit
from tokenizers.pre_tokenizers import Sequence as InOrder

from engine.interface.errors import ModelError
from server.text.tokenization.gguf_metadata import GgufMetadata, TokenType
from server.text.tokenization.native_errors import panics_as_errors
from server.text.tokenization.sentencepiece_vocabulary import bytes_of_pieces
from server.text.tokenization.tokenizers_encoder import TokenizersEncoder

_CONTINUES = "##"  # before a piece that does not begin a word, in the reference's vocabularies
_BEGINS = "\u2581"  # before one that does, in GGUF files
_MAX_WORD_CHARS = 100  # of a word; a longer one is unknown as a whole
_FILLER = re.compile(r"\[PAD\d+\]")  # what the converter calls a token that SentencePiece's own file does not have
_MASK = "<mask>"  # such a token
_FOUND_IN_TEXTS = frozenset({TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED})  # before anything else
# Characters with all beginnings that they have in UTF-8.
_OF_ALL_KINDS = "".join(
    map(
        chr,
        (
            *range(1, 0x800), *range(0x800, 0xD800, 0x40), *range(0xE000, 0x10000, 0x40),
            *range(0x10000, 0x110000, 0x1000),
        ),
    )
)  # fmt: skip


class WordPieceVocabulary(TokenizersEncoder):
    """A WordPiece vocabulary of a GGUF file, rebuilt as the reference has it; raises ModelError."""

    def __init__(self, metadata: GgufMetadata) -> None:
        types = metadata.token_types
        written = [_reference_token(token, kind) for token, kind in zip(metadata.tokens, types, strict=True)]
        vocabulary: dict[str, int] = {}
        for token_id, token in enumerate(written):
            vocabulary.setdefault(token, token_id)
        unknown_id = _role(metadata.unknown_token_id, "[UNK]", "unknown", vocabulary)
        cls_id, sep_id = metadata.cls_token_id, metadata.sep_token_id
        self.cls_id = _role(metadata.bos_token_id if cls_id is None else cls_id, "[CLS]", "cls", vocabulary)
        self.sep_id = _role(metadata.eos_token_id if sep_id is None else sep_id, "[SEP]", "seperator", vocabulary)
        # Files do not say whether a vocabulary has lost its capitals; one with any has been trained with them.
        is_lower = not any(
            kind == TokenType.NORMAL and token != token.lower() for token, kind in zip(written, types, strict=True)
        )
        tokenizer = Tokenizer(
            WordPiece(vocabulary, unk_token=written[unknown_id], max_input_chars_per_word=_MAX_WORD_CHARS)
        )
        tokenizer.normalizer = BertNormalizer(lowercase=is_lower)
        tokenizer.pre_tokenizer = BertPreTokenizer()
        added = _added({i: kind for i in metadata.other_ids if (kind := types[i]) in _FOUND_IN_TEXTS}, written)
        _add(tokenizer, added)
        super().__init__(tokenizer, added, [token_id for token_id, token in added.items() if token.special])
        self.tokens = written
        self.token_bytes = piece_bytes(written)
        for token_id in added:
            self.token_bytes[token_id] = b""


class UnigramVocabulary(TokenizersEncoder):
    """A Unigram vocabulary of a GGUF file, rebuilt as the reference has it; raises ModelError."""

    def __init__(self, metadata: GgufMetadata) -> None:
        tokens, types = list(metadata.tokens), metadata.token_types
        unknown_id = metadata.unknown_token_id
        if unknown_id is None:
            unknown_id = types.index(TokenType.UNKNOWN) if TokenType.UNKNOWN in types else 0
        found = {i: types[i] for i in metadata.other_ids if types[i] in (TokenType.CONTROL, TokenType.USER_DEFINED)}
        found[unknown_id] = TokenType.UNKNOWN
        mask_id = metadata.mask_token_id
        if mask_id is not None:
            found[mask_id] = TokenType.CONTROL
            tokens[mask_id] = _MASK if _FILLER.fullmatch(tokens[mask_id]) else tokens[mask_id]
        if not all(tokens) or not np.isfinite(metadata.scores).all():
            raise ModelError("the vocabulary has a token without a text, or a score that is no number")
        try:
            with panics_as_errors("the tokenizer's library"):
                tokenizer = Tokenizer(
                    Unigram(
                        list(zip(tokens, metadata.scores, strict=True)), unknown_id,
                        byte_fallback=TokenType.BYTE in types,
                    )
                )  # fmt: skip
                if metadata.precompiled_charsmap:
                    tokenizer.normalizer = Precompiled(metadata.precompiled_charsmap)
                    tokenizer.normalizer.normalize_str(_OF_ALL_KINDS)  # the library finds damage when it normalises
        except Exception as error:  # the library has no class of its own for what it refuses
            raise ModelError(f"the tokenizer's library does not accept the model's vocabulary: {error}") from error
        spaces = Metaspace(prepend_scheme="always" if metadata.add_space_prefix else "never")
        splits = metadata.remove_extra_whitespaces is True
        tokenizer.pre_tokenizer = InOrder([WhitespaceSplit(), spaces]) if splits else spaces
        added = _added(found, tokens)
        _add(tokenizer, added)
        named = frozenset(metadata.control_ids)
        super().__init__(tokenizer, added, [i for i, token in added.items() if token.special or i in named])
        self.tokens = tokens
        try:
            self.token_bytes = bytes_of_pieces(tokens, types)
        except ValueError as error:
            raise ModelError(str(error)) from error


def _added(types: Mapping[int, int], tokens: Sequence[str]) -> dict[int, AddedToken]:
    """The tokens that are found in a text before anything else, by their ids, of those with these types."""
    return {
        token_id: AddedToken(tokens[token_id], normalized=False, special=kind != TokenType.USER_DEFINED)
        for token_id, kind in types.items()
        if tokens[token_id]
    }


def _add(tokenizer: Tokenizer, added: Mapping[int, AddedToken]) -> None:
    tokenizer.add_special_tokens([token for token in added.values() if token.special])
    tokenizer.add_tokens([token for token in added.values() if not token.special])


def _role(token_id: int | None, name: str, role: str, vocabulary: Mapping[str, int]) -> int:
    """The token of a role, which older files do not state; raises ModelError where there is none."""
    found = vocabulary.get(name) if token_id is None else token_id
    if found is None:
        raise ModelError(f"the file lacks tokenizer.ggml.{role}_token_id, and its vocabulary has no {name}")
    return found


def piece_bytes(tokens: Sequence[str], prefix: str = _CONTINUES) -> list[bytes]:
    """The text of each token: a piece that begins a word has a space before it."""
    return [
        (token[len(prefix) :] if token.startswith(prefix) else f" {token}").encode("utf-8") if token else b""
        for token in tokens
    ]


def _reference_token(token: str, kind: int) -> str:
    if kind != TokenType.NORMAL:
        return token
    return token[1:] if token.startswith(_BEGINS) else _CONTINUES + token
