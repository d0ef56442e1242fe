"""Serialises SentencePiece's `ModelProto`, the only input of the `sentencepiece` library.

A GGUF file has the model's pieces, scores and types, but not this message
(https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto).
"""

# The wheel's `sentencepiece_model_pb2` needs protobuf: 262,144 pieces take 270 ms and 26 MB, 87 ms and 5 MB here.

import struct
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from server.text.tokenization.gguf_metadata import GgufMetadata, TokenType

SPACE_MARK = "\u2581"  # how SentencePiece writes a space within a piece

_SCORE_TAG = b"\x15"  # field 2 of a piece, with four bytes
_PIECE_BYTES = 9  # of a short piece without its text: the head of the text, the score and the type
_HEAD_BYTES = 2  # of the field that holds a short piece
_ABSENT = -1  # the id of a token that SentencePiece must not add by itself


_BPE = 2  # as `TrainerSpec.model_type`


def model_proto(metadata: GgufMetadata) -> bytes:
    """The serialised `ModelProto` of the vocabulary in a GGUF file, whose types of pieces have the same numbers.

    Converters replace SPACE_MARK by a space in user-defined symbols, which is undone: SentencePiece looks for them in
    texts whose spaces are marks.
    """
    token_types = list(metadata.token_types)
    for token_id in metadata.control_ids:
        token_types[token_id] = TokenType.CONTROL  # otherwise SentencePiece itself finds it in texts
    unknown_id = metadata.unknown_token_id
    if unknown_id is None:
        unknown_id = token_types.index(TokenType.UNKNOWN) if TokenType.UNKNOWN in token_types else 0
    for token_id in metadata.other_ids:
        if token_types[token_id] == TokenType.UNKNOWN:
            token_types[token_id] = TokenType.UNUSED  # some files have many, to fill the vocabulary
    token_types[unknown_id] = TokenType.UNKNOWN  # some files say only that it is a control token
    texts = list(metadata.tokens)
    for token_id in metadata.other_ids:
        if token_types[token_id] == TokenType.USER_DEFINED:
            texts[token_id] = texts[token_id].replace(" ", SPACE_MARK)
    has_bytes = TokenType.BYTE in token_types
    trainer = _int_field(3, _BPE) + _int_field(4, len(token_types)) + _int_field(35, int(has_bytes))
    trainer += b"".join(
        _int_field(number, value) for number, value in {40: unknown_id, 41: _ABSENT, 42: _ABSENT, 43: _ABSENT}.items()
    )
    normalizer = _normalizer(metadata)
    return piece_fields(texts, metadata.scores, token_types) + _bytes_field(2, trainer) + _bytes_field(3, normalizer)


def with_control(proto: bytes, token_ids: Collection[int]) -> bytes:
    """A serialised `ModelProto` with the pieces `token_ids` turned into control tokens; raises ValueError if invalid.

    The pieces are the fields of number 1, in the order of their ids. The last value of a repeated scalar field counts.
    """
    made, position, token_id = list[bytes](), 0, 0
    is_control = _int_field(3, TokenType.CONTROL)
    while position < len(proto):
        begin = position
        tag, position = _read_varint(proto, position)
        if tag & 7 != 2:
            raise ValueError("it has a field that is not a message")
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


def without_prefix(proto: bytes) -> bytes:
    """A serialised `ModelProto` that adds no space before a text, by a field that overrides the one before."""
    return proto + _bytes_field(3, _int_field(3, 0))


def _normalizer(metadata: GgufMetadata) -> bytes:
    prefix = metadata.add_space_prefix is not False  # as in llama.cpp
    return (
        _bytes_field(1, b"gguf" if metadata.precompiled_charsmap else b"identity")
        + _bytes_field(2, metadata.precompiled_charsmap)
        + _int_field(3, int(prefix))
        + _int_field(4, int(metadata.remove_extra_whitespaces is True))
        + _int_field(5, 1)  # spaces become SPACE_MARK
    )


def piece_fields(texts: Sequence[str], scores: Sequence[float], token_types: Sequence[int]) -> bytes:
    """The fields of all pieces of a `ModelProto`, written by numpy; raises OverflowError or ValueError."""
    if not len(texts) == len(scores) == len(token_types):
        raise ValueError(f"there are {len(texts)} tokens, {len(scores)} scores and {len(token_types)} types")
    encoded, sizes = _encoded(texts)
    numbers = np.frombuffer(struct.pack(f"<{len(scores)}f", *scores), "<f4")
    kinds = np.asarray(token_types)
    # Every varint of a short piece takes one byte.
    is_short = (sizes + _PIECE_BYTES < 0x80) & (kinds >= 0) & (kinds < 0x80)
    short = _short_pieces(encoded[np.repeat(is_short, sizes)], sizes[is_short], numbers[is_short], kinds[is_short])
    made, position = list[bytes](), 0
    ends = np.cumsum(np.where(is_short, _HEAD_BYTES + _PIECE_BYTES + sizes, 0))  # of the short ones up to each piece
    for token_id in np.flatnonzero(~is_short).tolist():
        made.append(short[position : ends[token_id]])
        position = int(ends[token_id])
        text, score = texts[token_id].encode("utf-8"), numbers[token_id].tobytes()
        made.append(_bytes_field(1, _bytes_field(1, text) + _SCORE_TAG + score + _int_field(3, token_types[token_id])))
    return b"".join([*made, short[position:]])


def _short_pieces(
    texts: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int64], scores: npt.NDArray[np.float32], kinds: npt.NDArray[Any]
) -> bytes:
    """The fields of n pieces whose varints all take one byte.

    `texts` are uint8[sum of sizes], `sizes` int64[n] bytes of each text, `scores` float32[n], `kinds` integers[n].
    """
    text_tag = 1 << 3 | 2  # field 1 with a length, as that of a whole piece
    before: list[int | npt.NDArray[Any]] = [text_tag, sizes + _PIECE_BYTES, text_tag, sizes]
    behind: list[int | npt.NDArray[Any]] = [_SCORE_TAG[0], *scores.view(np.uint8).reshape(-1, 4).T, 3 << 3, kinds]
    ends = np.cumsum(len(before) + sizes + len(behind))
    starts = ends - sizes - len(before) - len(behind)
    made = np.zeros(len(texts) + (len(before) + len(behind)) * len(sizes), np.uint8)
    is_text = np.ones(len(made), np.bool_)
    for first, fields in ((starts, before), (ends - len(behind), behind)):
        for i, field in enumerate(fields):
            made[first + i] = field
            is_text[first + i] = False
    made[is_text] = texts
    return made.tobytes()


def _encoded(texts: Sequence[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    together = np.frombuffer("\0".join(texts).encode("utf-8"), np.uint8)
    ends = np.flatnonzero(together == 0)
    if len(ends) == len(texts) - 1:
        return together[together != 0], np.diff(ends, prepend=-1, append=len(together)) - 1
    each = [text.encode("utf-8") for text in texts]  # a text contains a zero
    return np.frombuffer(b"".join(each), np.uint8), np.asarray([len(text) for text in each], np.int64)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value, shift, position = value | (byte & 0x7F) << shift, shift + 7, position + 1
        if byte < 0x80:
            return value, position


def _varint(value: int) -> bytes:
    if 0 <= value < 0x80:  # nearly all of them
        return bytes((value,))
    value &= (1 << 64) - 1  # a negative number is written in 64 bits
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
