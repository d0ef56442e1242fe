"""Arrays of strings in GGUF files, against a reader that takes them one by one."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.weights.formats import gguf_strings
from engine.weights.formats.gguf_strings import decode_strings, lengths_of_strings, size_of_strings


def read_one_by_one(data: bytes, offset: int, count: int) -> list[bytes]:
    """
    Raises:
        EOFError: the data are too short.
    """
    strings = []
    for _ in range(count):
        if offset + 8 > len(data):
            raise EOFError
        (length,) = struct.unpack_from("<Q", data, offset)
        strings.append(data[offset + 8 : offset + 8 + length])
        offset += 8 + length
        if offset > len(data):
            raise EOFError
    return strings


def written(strings: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(string)) + string for string in strings)


@pytest.fixture(params=[(64 << 10, 256), (40, 1), (9, 2), (300, 3)])
def _searched_in_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    window, one_by_one = request.param
    monkeypatch.setattr(gguf_strings, "WINDOW", window)
    monkeypatch.setattr(gguf_strings, "ONE_BY_ONE", one_by_one)


some_strings = st.lists(
    st.one_of(
        st.text(max_size=6),
        st.sampled_from(
            ["", "a", "Ġthe", "\0", "\0" * 7, "\0" * 8, "a" + "\0" * 8 + "b", "é" * 64, "x" * 255, "x" * 256]
        ),
        st.integers(100, 600).map("y".__mul__),
    ),
    max_size=30,
)


@pytest.mark.usefixtures("_searched_in_parts")
@given(
    strings=some_strings,
    before=st.binary(max_size=9),
    behind=st.one_of(st.binary(max_size=30), some_strings.map(lambda strings: written([s.encode() for s in strings]))),
)
def test_strings_are_those_that_were_written(strings: list[str], before: bytes, behind: bytes) -> None:
    encoded = [string.encode() for string in strings]
    data = np.frombuffer(before + written(encoded) + behind, np.uint8)
    lengths = lengths_of_strings(data, len(before), len(strings))
    assert lengths.tolist() == [len(string) for string in encoded]
    size = size_of_strings(lengths)
    assert size == len(written(encoded))
    assert decode_strings(data[len(before) : len(before) + size], lengths) == strings


@pytest.mark.usefixtures("_searched_in_parts")
@given(
    pieces=st.lists(
        st.sampled_from([b"\0", b"\0" * 7, b"\1", b"\2", b"\x09", b"ab", b"\xff", b"\1" + b"\0" * 7]), max_size=40
    ),
    offset=st.integers(0, 3),
    count=st.integers(0, 12),
)
def test_whatever_the_bytes_the_lengths_are_those_of_a_plain_reader(
    pieces: list[bytes], offset: int, count: int
) -> None:
    raw = b"".join(pieces)
    data = np.frombuffer(raw, np.uint8)
    try:
        expected = read_one_by_one(raw, offset, count)
    except EOFError:
        with pytest.raises(ValueError, match="beyond the end of the file"):
            lengths_of_strings(data, offset, count)
        return
    lengths = lengths_of_strings(data, offset, count)
    assert lengths.tolist() == [len(string) for string in expected]
    part = data[offset : offset + size_of_strings(lengths)]
    try:
        texts = [string.decode() for string in expected]
    except UnicodeDecodeError:
        with pytest.raises(UnicodeDecodeError):
            decode_strings(part, lengths)
        return
    assert decode_strings(part, lengths) == texts


@pytest.mark.usefixtures("_searched_in_parts")
def test_an_array_cut_anywhere_is_refused() -> None:
    whole = written([b"first", b"", b"x" * 300, *[b"many"] * 20])
    for length in range(len(whole)):
        with pytest.raises(ValueError, match="beyond the end of the file"):
            lengths_of_strings(np.frombuffer(whole[:length], np.uint8), 0, 23)


@pytest.mark.usefixtures("_searched_in_parts")
@pytest.mark.parametrize("length", [2**56 + 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_length_beyond_all_files_is_refused(length: int) -> None:
    data = np.frombuffer(written([b"a"]) + struct.pack("<Q", length) + b"b", np.uint8)
    with pytest.raises(ValueError, match="beyond the end of the file"):
        lengths_of_strings(data, 0, 2)


def test_long_strings_among_many_are_read() -> None:
    """As in vocabularies that have runs of 128 spaces."""
    strings = [f"token {i}" if i % 5000 else "Ġ" * 140 for i in range(20_000)]
    data = np.frombuffer(written([string.encode() for string in strings]), np.uint8)
    assert decode_strings(data, lengths_of_strings(data, 0, len(strings))) == strings
