"""SentencePiece's file format as Eagre writes it, against a writer of one piece at a time, and against the library."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from server.text.tokenization.gguf_metadata import TokenType
from server.text.tokenization.sentencepiece_proto import ModelType, model_proto, piece_fields
from tests.server.support.gguf_files import metadata_of
from tests.server.text.tokenization.test_sentencepiece_vocabulary import fields_of, train


def varint(value: int) -> bytes:
    value %= 1 << 64
    encoded = b""
    while value >= 0x80:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def one_piece(text: str, score: float, token_type: int) -> bytes:
    score_field = varint(2 << 3 | 5) + struct.pack("<f", score)
    return message(1, message(1, text.encode("utf-8")) + score_field + varint(3 << 3) + varint(token_type))


texts = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["", "\0", "a\0b", "\u2581the", "<0x0A>"]),
    st.integers(110, 135).map("x".__mul__),
    st.sampled_from(["é" * 59, "é" * 60, "y" * 20_000]),
)
types = st.one_of(st.sampled_from(list(map(int, TokenType))), st.sampled_from([-1, 0, 127, 128, 300, -(2**31)]))
scores = st.floats(width=32, allow_nan=False)


@given(st.lists(st.tuples(texts, scores, types), min_size=1, max_size=20))
def test_pieces_are_those_of_a_plain_writer(pieces: list[tuple[str, float, int]]) -> None:
    written = piece_fields(*(list(column) for column in zip(*pieces, strict=True)))
    assert written == b"".join(one_piece(*piece) for piece in pieces)


def test_a_score_that_no_float32_holds_is_an_error() -> None:
    with pytest.raises(OverflowError):
        piece_fields(["a"], [1e300], [1])


def test_as_many_scores_and_types_as_tokens_are_needed() -> None:
    for scores, types_ in (([1.0, 2.0], [1]), ([1.0], [1, 1]), ([], [1])):
        with pytest.raises(ValueError, match="there are 1 tokens"):
            piece_fields(["a"], scores, types_)


def test_the_library_finds_what_was_written(tmp_path: Path) -> None:
    original = train()
    fields = fields_of(original)
    longest = "long" * 40
    fields["tokenizer.ggml.tokens"] = [*fields["tokenizer.ggml.tokens"], longest]
    fields["tokenizer.ggml.token_type"] = [*fields["tokenizer.ggml.token_type"], int(TokenType.NORMAL)]
    fields["tokenizer.ggml.scores"] = [*fields["tokenizer.ggml.scores"], -0.25]
    proto = model_proto(metadata_of(tmp_path, fields), ModelType.BPE)
    read = sentencepiece.SentencePieceProcessor(model_proto=proto)
    size = original.vocab_size()
    assert [read.id_to_piece(i) for i in range(size)] == [original.id_to_piece(i) for i in range(size)]
    assert [read.get_score(i) for i in range(size)] == [original.get_score(i) for i in range(size)]
    assert read.id_to_piece(size) == longest
    assert read.get_score(size) == -0.25
