"""SentencePiece vocabularies (BPE and Unigram), on the `sentencepiece` library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sentencepiece import SentencePieceProcessor

from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import read_limited
from server.text.tokenization.control_tokens import (
    CONTROL_NAME_BEGINS,
    AddedToken,
    ControlTokens,
    Part,
    is_control_name,
)
from server.text.tokenization.gguf_metadata import GgufMetadata, TokenType
from server.text.tokenization.native_errors import TooManyTokens
from server.text.tokenization.sentencepiece_proto import (
    SPACE_MARK,
    model_proto,
    with_control,
    without_prefix,
)

LISTED = 16 << 10  # ids that are converted at once, while the interpreter lock is held
_FULL_WIDTH = "\uff5c"  # a bar; compatibility normalisation makes a plain one of it
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
# White space as Unicode defines it. Python's `str.strip` would also take away the separators U+001C to U+001F.
WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


class SpacePrefix(StrEnum):
    """Which segments of a text, between tokens found before SentencePiece sees it, get a leading space."""

    ALWAYS = "always"  # every segment: `legacy` in transformers, and the way of llama.cpp
    FIRST = "first"  # only the segment at the start of the text
    NEVER = "never"


class _Processors(NamedTuple):
    """One model as two processors, which differ if only the first segment gets a space prefix."""

    first: SentencePieceProcessor  # for the segment at the start of a text
    later: SentencePieceProcessor


class SentencePieceVocabulary:
    """A SentencePiece vocabulary; see `Vocabulary`.

    SentencePiece finds no control tokens in a text and does not know added tokens, so their names are found before.
    Control tokens that a model stores as user-defined symbols are left to it, unless a message has written one; then a
    second processor tokenizes, to which they are control tokens.

    Args:
        proto: the serialized `ModelProto`.
        tokens: the texts of all tokens by id: the pieces of the model, then what was added behind them.
        token_types: see TokenType.
        added: by their texts, the tokens that are found in a text before SentencePiece sees it.

    Raises ValueError where a byte token is not <0xFF>, RuntimeError where SentencePiece does not accept the model.
    """

    def __init__(
        self,
        proto: bytes,
        tokens: Sequence[str],
        token_types: Sequence[int],
        added: Mapping[str, AddedToken],
        prefix: SpacePrefix,
    ) -> None:
        self._processors = _load(proto, prefix)
        special = {name: token.token_id for name, token in added.items() if token.is_special}
        found = {name: token.token_id for name, token in added.items()}
        # User-defined symbols that are control tokens by their names.
        hidden = {name: token_id for name, token_id in _named_as_control(tokens).items() if name not in special}
        symbols = _symbols(self._processors.first, (special | hidden).values())
        self._processors_without_names = _load(with_control(proto, symbols), prefix) if symbols else self._processors
        # A processor that normalises finds a name in other characters too, such as those of full width.
        is_exact = not symbols or _FULL_WIDTH in self._processors.first.normalize(_FULL_WIDTH)
        self.control = ControlTokens(special | hidden, is_exact=is_exact)
        self._added_names = self.control if found == self.control.ids else ControlTokens(found)
        # What a message may write, and SentencePiece would not find.
        self._plain_names = ControlTokens({n: token_id for n, token_id in found.items() if n not in self.control.ids})
        self._strips_left = {token.token_id for token in added.values() if token.strips_left}
        self._strips_right = {token.token_id for token in added.values() if token.strips_right}
        self.tokens = tokens
        self.special_ids = frozenset(special.values())
        self.token_bytes = bytes_of_pieces(tokens, token_types)

    @classmethod
    def from_gguf(cls, metadata: GgufMetadata) -> SentencePieceVocabulary:
        """The vocabulary of a GGUF file, with space prefixes as in llama.cpp; raises ModelError."""
        tokens, token_types = metadata.tokens, metadata.token_types
        # The tokens of Phi-3 remove the white space after them, for which the file has no field.
        strips = metadata.architecture == "phi3"
        added = {
            tokens[token_id]: AddedToken(
                token_id, is_special=True, strips_right=strips and tokens[token_id] not in _PHI3_KEEPS_SPACE
            )
            for token_id in metadata.control_ids
            if tokens[token_id]
        }
        try:
            return cls(model_proto(metadata), tokens, token_types, added, SpacePrefix.ALWAYS)
        except (RuntimeError, ValueError, OverflowError) as error:  # OverflowError: a score out of the range of float32
            raise ModelError(f"SentencePiece does not accept the model's vocabulary: {error}") from error

    @classmethod
    def from_file(
        cls, path: Path, added: Mapping[str, AddedToken] | None = None, prefix: SpacePrefix = SpacePrefix.ALWAYS
    ) -> SentencePieceVocabulary:
        """Reads SentencePiece's own file format.

        Other files add the tokens in `added`; `prefix` is the rule of a model with a space before each text. Raises
        ModelError: the file is damaged or cannot be read, or an added token has the id of another one.
        """
        added = {} if added is None else added
        proto = read_limited(path)
        try:
            if not proto:  # the library treats empty bytes as a missing argument
                raise ValueError("it is empty")
            processor = SentencePieceProcessor(model_proto=proto)
            token_ids = range(processor.vocab_size())
            tokens = [processor.id_to_piece(token_id) for token_id in token_ids]
            token_types = [int(_type_of(processor, token_id)) for token_id in token_ids]
            all_added = {
                tokens[token_id]: AddedToken(token_id, is_special=True)
                for token_id in token_ids
                if processor.is_control(token_id) and tokens[token_id]
            }
            for name, token in added.items():
                all_added[name] = replace(token, is_special=token.is_special or name in all_added)
                _place(name, all_added[name], tokens, token_types, path)
            return cls(proto, tokens, token_types, all_added, prefix)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ModelError(f"{path} is not a SentencePiece model, or it is damaged: {error}") from error

    def encode(self, text: str, max_tokens: int | None = None) -> list[int]:
        return self._encode(self._processors, self._added_names.split(text), max_tokens)

    def encode_parts(self, parts: Iterable[Part], mark: str, max_tokens: int | None = None) -> list[int]:
        finer = (
            piece for part in parts for piece in ((part,) if isinstance(part, int) else self._plain_names.split(part))
        )
        return self._encode(self._processors_without_names, finer, max_tokens)

    def _encode(self, processors: _Processors, parts: Iterable[Part], max_tokens: int | None) -> list[int]:
        token_ids: list[int] = []
        processor = processors.first
        for part in self._stripped(parts) if self._strips_left or self._strips_right else parts:
            if isinstance(part, int):
                token_ids.append(part)
            else:
                _append(token_ids, processor, part, max_tokens)
            processor = processors.later
            if max_tokens is not None and len(token_ids) > max_tokens:
                raise TooManyTokens(len(token_ids))
        return token_ids

    def _stripped(self, parts: Iterable[Part]) -> Iterator[Part]:
        waiting: Part = ""
        for part in parts:
            if isinstance(part, str) and waiting in self._strips_right:
                part = part.lstrip(WHITE_SPACE)
            elif isinstance(waiting, str) and part in self._strips_left:
                waiting = waiting.rstrip(WHITE_SPACE)
            if waiting != "":
                yield waiting
            waiting = part
        if waiting != "":
            yield waiting


_PHI3_KEEPS_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def _load(proto: bytes, prefix: SpacePrefix) -> _Processors:
    if prefix is SpacePrefix.NEVER:
        bare = SentencePieceProcessor(model_proto=without_prefix(proto))
        return _Processors(bare, bare)
    processor = SentencePieceProcessor(model_proto=proto)
    if prefix is SpacePrefix.ALWAYS or not processor.normalize("a").startswith(SPACE_MARK):
        return _Processors(processor, processor)
    return _Processors(processor, SentencePieceProcessor(model_proto=without_prefix(proto)))


def _symbols(processor: SentencePieceProcessor, control_ids: Iterable[int]) -> set[int]:
    """Those of `control_ids` that are ordinary pieces for the processor, which it finds in texts."""
    pieces = [token_id for token_id in control_ids if token_id < processor.vocab_size()]
    return {token_id for token_id in pieces if not (processor.is_control(token_id) or processor.is_unknown(token_id))}


def _place(name: str, token: AddedToken, tokens: list[str], token_types: list[int], path: Path) -> None:
    """Writes an added token into the lists of all tokens; raises ModelError where another token has its id."""
    missing = token.token_id + 1 - len(tokens)
    tokens += [""] * missing
    token_types += [TokenType.UNUSED] * missing
    if tokens[token.token_id] not in ("", name):
        raise ModelError(
            f"{path.parent}: the added token {name!r} has the id {token.token_id}, which {path.name} gives to "
            f"{tokens[token.token_id]!r}"
        )
    tokens[token.token_id] = name
    token_types[token.token_id] = TokenType.CONTROL if token.is_special else TokenType.USER_DEFINED


def _append(token_ids: list[int], processor: SentencePieceProcessor, text: str, max_tokens: int | None) -> None:
    if len(text) <= LISTED:
        token_ids += processor.encode(text)
        return
    found = processor.encode_as_numpy(text)
    if max_tokens is not None and len(token_ids) + len(found) > max_tokens:
        raise TooManyTokens(len(token_ids) + len(found))
    for start in range(0, len(found), LISTED):
        token_ids += found[start : start + LISTED].tolist()


def _named_as_control(tokens: Sequence[str]) -> dict[str, int]:
    likely = [(token_id, token) for token_id, token in enumerate(tokens) if token.startswith(CONTROL_NAME_BEGINS)]
    return {token: token_id for token_id, token in likely if is_control_name(token)}


def _type_of(processor: SentencePieceProcessor, token_id: int) -> TokenType:
    if processor.is_unknown(token_id):
        return TokenType.UNKNOWN
    if processor.is_control(token_id):
        return TokenType.CONTROL
    if processor.is_unused(token_id):
        return TokenType.UNUSED
    return TokenType.BYTE if processor.is_byte(token_id) else TokenType.NORMAL


def bytes_of_pieces(tokens: Sequence[str], token_types: Sequence[int]) -> list[bytes]:
    """The bytes of each token, none of control tokens; raises ValueError where a byte token is not <0xFF>.

    A start waits for this, so all tokens become bytes together, with zeros between them, unless an added token has one.
    """
    all_bytes = "\0".join(tokens).replace(SPACE_MARK, " ").encode("utf-8").split(b"\0")
    if len(all_bytes) != len(tokens):
        all_bytes = [token.replace(SPACE_MARK, " ").encode("utf-8") for token in tokens]
    for token_id in np.flatnonzero(np.asarray(token_types) != TokenType.NORMAL).tolist():
        match token_types[token_id]:
            case TokenType.BYTE:
                all_bytes[token_id] = stated_byte(tokens[token_id])
            case TokenType.USER_DEFINED:
                pass
            case _:
                all_bytes[token_id] = b""
    return all_bytes


def stated_byte(token: str) -> bytes:
    """The byte of a token's name; raises ValueError where it is not <0xFF>."""
    match = BYTE_PIECE.fullmatch(token)
    if match is None:
        raise ValueError(f"the byte token {token!r} is not of the form <0xFF>")
    return bytes([int(match[1], 16)])
