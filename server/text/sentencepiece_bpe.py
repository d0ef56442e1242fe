"""SentencePiece vocabularies, through the `sentencepiece` library.

A model folder may have the original file, `tokenizer.model`. A GGUF file (`tokenizer.ggml.model` "llama")
has the pieces, scores and types of a BPE model, but not that file. The library reads nothing else, so this
module writes the file again: a protocol buffer with the message `ModelProto`
(https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto). It needs only three
kinds of fields of the wire format, so no protobuf library is used.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import sentencepiece

from engine.border.errors import ModelError
from server.text.control_tokens import ControlTokens, Part, is_control_name
from server.text.failures import TooManyTokens
from server.text.gguf_metadata import GgufMetadata, TokenType

SPACE_MARK = "\u2581"  # how SentencePiece writes a space within a piece
MODEL_TYPE_BPE = 2
LISTED = 16 << 10  # ids that are listed at once, for which the interpreter lock is kept
_FULL_WIDTH = "\uff5c"  # a bar; compatibility normalisation makes a plain one of it
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class SentencePieceBpe:
    """A SentencePiece vocabulary with byte fallback.

    SentencePiece never yields control tokens, so their names are found before it sees the text. If the
    model wants a space before a text, then each stretch of text behind a control token gets one too.

    Some models store control tokens as symbols of the user, which SentencePiece does find in a text. They are left
    to it, unless a message has written one; then a second processor tokenises, to which they are control tokens.
    """

    def __init__(
        self,
        processor: sentencepiece.SentencePieceProcessor,
        tokens: Sequence[str],
        token_types: Sequence[int],
        control_ids: Iterable[int],
        *,
        prefix: str,
        blind: sentencepiece.SentencePieceProcessor | None = None,
    ) -> None:
        """Wraps a loaded model.

        Args:
            tokens: the pieces of the model by token id.
            token_types: see TokenType.
            control_ids: of the control tokens. The processor never yields one of them.
            prefix: is put before each stretch of text; empty if the processor does so itself.
            blind: the same model, in which the tokens that only their names show as control tokens are such. If None,
                there are none of that kind.

        Raises:
            ValueError: the text of a byte token is not of the form <0xFF>.
        """
        self._processor = processor
        self._blind = blind or processor
        self._prefix = prefix
        self._stated = ControlTokens({tokens[token_id]: token_id for token_id in control_ids if tokens[token_id]})
        self.control = self._stated
        if blind is not None:
            # A processor that normalises finds a name in other characters too, such as those of full width.
            is_exact = _FULL_WIDTH in processor.normalize(_FULL_WIDTH)
            self.control = ControlTokens(self._stated.ids | _named_as_control(tokens), is_exact=is_exact)
        self.tokens = tokens
        self.special_ids = frozenset(self._stated.ids.values())
        self.token_bytes = [_bytes_of(token, token_type) for token, token_type in zip(tokens, token_types, strict=True)]

    @classmethod
    def from_gguf(cls, metadata: GgufMetadata) -> SentencePieceBpe:
        """Builds the model from the vocabulary in a GGUF file.

        Raises:
            ModelError: SentencePiece does not accept the vocabulary.
        """
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=_model_proto(metadata))
            prefix = "" if metadata.add_space_prefix is False else " "
            return cls(processor, metadata.tokens, metadata.token_types, metadata.control_ids, prefix=prefix)
        except (RuntimeError, ValueError, OverflowError) as error:  # OverflowError: of a score that no float32 holds
            raise ModelError(f"SentencePiece does not accept the model's vocabulary: {error}") from error

    @classmethod
    def from_proto(cls, path: Path, data: bytes) -> SentencePieceBpe:
        """Reads a model in SentencePiece's own format; such a model adds the space before a text itself.

        Args:
            data: the content of the file at `path`.

        Raises:
            ModelError: the file is damaged.
        """
        try:
            if not data:  # the library would take empty bytes for a missing argument
                raise ValueError("it is empty")
            processor = sentencepiece.SentencePieceProcessor(model_proto=data)
            token_ids = range(processor.vocab_size())
            tokens = [processor.id_to_piece(token_id) for token_id in token_ids]
            token_types = [_type_of(processor, token_id) for token_id in token_ids]
            control_ids = [token_id for token_id in token_ids if processor.is_control(token_id)]
            hidden_ids = set(_named_as_control(tokens).values()) - set(control_ids)
            blind = None
            if hidden_ids:
                blind = sentencepiece.SentencePieceProcessor(model_proto=_with_control(data, hidden_ids))
            return cls(processor, tokens, token_types, control_ids, prefix="", blind=blind)
        except (RuntimeError, ValueError, IndexError) as error:
            raise ModelError(f"{path} is no SentencePiece model, or it is damaged: {error}") from error

    def encode(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Token ids of `text`; names of control tokens in it become those tokens. See `Vocabulary`."""
        return self._encode(self._processor, self._stated.split(text), max_tokens)

    def encode_parts(self, parts: Iterable[Part], mark: str, max_tokens: int | None = None) -> list[int]:
        """Token ids of `parts`; no text of them becomes a control token. See `Vocabulary`."""
        return self._encode(self._blind, parts, max_tokens)

    def _encode(
        self, processor: sentencepiece.SentencePieceProcessor, parts: Iterable[Part], max_tokens: int | None
    ) -> list[int]:
        token_ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                token_ids.append(part)
            else:
                _append(token_ids, processor, self._prefix + part, max_tokens)
            if max_tokens is not None and len(token_ids) > max_tokens:
                raise TooManyTokens(len(token_ids))
        return token_ids


def _append(
    token_ids: list[int], processor: sentencepiece.SentencePieceProcessor, text: str, max_tokens: int | None
) -> None:
    if len(text) <= LISTED:
        token_ids += processor.encode(text)
        return
    found = processor.encode_as_numpy(text)
    if max_tokens is not None and len(token_ids) + len(found) > max_tokens:
        raise TooManyTokens(len(token_ids) + len(found))
    for start in range(0, len(found), LISTED):
        token_ids += found[start : start + LISTED].tolist()


def _named_as_control(tokens: Sequence[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(tokens) if is_control_name(token)}


def _type_of(processor: sentencepiece.SentencePieceProcessor, token_id: int) -> TokenType:
    if processor.is_unknown(token_id):
        return TokenType.UNKNOWN
    if processor.is_control(token_id):
        return TokenType.CONTROL
    if processor.is_unused(token_id):
        return TokenType.UNUSED
    return TokenType.BYTE if processor.is_byte(token_id) else TokenType.NORMAL


def _bytes_of(token: str, token_type: int) -> bytes:
    if token_type == TokenType.BYTE:
        match = BYTE_PIECE.fullmatch(token)
        if match is None:
            raise ValueError(f"the byte token {token!r} is not of the form <0xFF>")
        return bytes([int(match[1], 16)])
    if token_type in (TokenType.NORMAL, TokenType.USER_DEFINED):
        return token.replace(SPACE_MARK, " ").encode("utf-8")
    return b""


def _model_proto(metadata: GgufMetadata) -> bytes:
    """The serialised `ModelProto`. GGUF uses the same numbers for the types of pieces."""
    token_types = list(metadata.token_types)
    for token_id in metadata.control_ids:
        token_types[token_id] = TokenType.CONTROL  # otherwise SentencePiece itself finds it in texts
    pieces = b"".join(
        _bytes_field(1, _bytes_field(1, token.encode("utf-8")) + _float_field(2, score) + _int_field(3, token_type))
        for token, score, token_type in zip(metadata.tokens, metadata.scores, token_types, strict=True)
    )
    has_bytes = TokenType.BYTE in metadata.token_types
    unknown_id = metadata.token_types.index(TokenType.UNKNOWN) if TokenType.UNKNOWN in metadata.token_types else 0
    # -1, which protobuf writes in 64 bits, means that SentencePiece itself adds no begin, end or padding token.
    ids = {40: unknown_id, 41: -1, 42: -1, 43: -1}
    trainer = _int_field(3, MODEL_TYPE_BPE) + _int_field(4, len(metadata.tokens)) + _int_field(35, int(has_bytes))
    trainer += b"".join(_int_field(number, value) for number, value in ids.items())
    normalizer = _bytes_field(1, b"identity") + b"".join((_int_field(3, 0), _int_field(4, 0), _int_field(5, 1)))
    return pieces + _bytes_field(2, trainer) + _bytes_field(3, normalizer)


def _with_control(proto: bytes, token_ids: Collection[int]) -> bytes:
    """A serialised `ModelProto` that SentencePiece has accepted, with other pieces made control tokens.

    The pieces are the fields of number 1, in the order of their ids. Of a field that a message has twice, the last
    counts.
    """
    made, position, token_id = list[bytes](), 0, 0
    is_control = _int_field(3, TokenType.CONTROL)
    while position < len(proto):
        begin = position
        tag, position = _read_varint(proto, position)
        if tag & 7 != 2:
            raise ValueError("it has a field that is no message")
        length, start = _read_varint(proto, position)
        position = start + length
        if tag >> 3 == 1:
            made.append(
                _bytes_field(1, proto[start:position] + is_control) if token_id in token_ids else proto[begin:position]
            )
            token_id += 1
        else:
            made.append(proto[begin:position])
    return b"".join(made)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at a position, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        value, shift, position = value | (byte & 0x7F) << shift, shift + 7, position + 1
        if byte < 0x80:
            return value, position


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _int_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes_field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _float_field(number: int, value: float) -> bytes:
    return _varint(number << 3 | 5) + struct.pack("<f", value)
