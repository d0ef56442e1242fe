"""SentencePiece's file format as Eagre writes it, against a writer of one piece at a time, and against the library.

The vocabulary of the real Gemma 3 270M is compared with the library's on a thousand lines of mixed scripts.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from server.text.detokenizer import IncrementalDetokenizer
from server.text.tokenization.gguf_metadata import TokenType, read_gguf_metadata
from server.text.tokenization.sentencepiece_proto import model_proto, piece_fields
from server.text.tokenizer import Tokenizer
from tests.server.support.gguf_files import metadata_of
from tests.server.support.mixed_lines import lines_of
from tests.server.text.tokenization.test_sentencepiece_vocabulary import fields_of, train

GEMMA = json.loads((Path(__file__).parents[3] / "golden" / "gemma3_tokenizer.json").read_bytes())


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
    proto = model_proto(metadata_of(tmp_path, fields))
    read = sentencepiece.SentencePieceProcessor(model_proto=proto)
    size = original.vocab_size()
    assert [read.id_to_piece(i) for i in range(size)] == [original.id_to_piece(i) for i in range(size)]
    assert [read.get_score(i) for i in range(size)] == [original.get_score(i) for i in range(size)]
    assert read.id_to_piece(size) == longest
    assert read.get_score(size) == -0.25


@pytest.fixture(scope="module")
def gemma(gemma_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(read_gguf_metadata(gemma_path))


@pytest.mark.parametrize("entry", GEMMA["scripts"], ids=lambda entry: entry["script"].split()[0])
def test_gemma_equals_sentencepiece_on_lines_of(gemma: Tokenizer, entry: dict[str, Any]) -> None:
    lines = lines_of(entry["script"])
    token_ids = [gemma.encode(line, add_special_tokens=False) for line in lines]
    assert token_ids[: len(entry["first"])] == entry["first"]
    assert hashlib.sha256(json.dumps(token_ids).encode()).hexdigest() == entry["sha256_of_ids"]
    for line, ids in zip(lines, token_ids, strict=True):
        detokenizer = IncrementalDetokenizer(gemma)
        streamed = "".join(detokenizer.decode([token_id]) for token_id in ids)
        assert streamed == gemma.decode(ids) == line.replace("\u2581", " ")


@pytest.mark.parametrize(
    ("num_spaces", "between"),
    [
        (31, [167, 1437]),
        (32, [167, 506]),
        (33, [167, 138, 1437]),
        (63, [167, 167, 506]),
        (100, [167, 167, 167, 143, 1437]),
    ],
)
def test_long_runs_of_spaces_are_cut_as_gemmas_own_tokenizer_does(
    gemma: Tokenizer, num_spaces: int, between: list[int]
) -> None:
    """From the left, by tokens of up to 31; what remains of one space belongs to the word. Its merges say the same."""
    text = f"x{' ' * num_spaces}the"
    assert gemma.encode(text, add_special_tokens=False) == [236781, *between]


def test_facts_of_gemmas_file(gemma: Tokenizer) -> None:
    assert gemma.encode("Hi", add_special_tokens=True)[0] == gemma.bos_token_id == 2
    # The file states 1; the name <end_of_turn> says that 106 ends an output too.
    assert gemma.eos_token_ids == (1, 106)
    assert gemma.encode("<start_of_turn>user\n", add_special_tokens=False) == [105, 2364, 107]
