"""The strings of an array in a GGUF file: each one is its length in bytes, 8 bytes, little-endian, and then its bytes.

Each length tells where the next string begins. Vocabularies have up to 500,000 of them, for which a start waits, so
strings are not read one by one: nearly all lengths are from 1 to 255, and so one byte and seven zeros.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

_LENGTH = struct.Struct("<Q")
WINDOW = 256 << 10  # bytes that are searched for zeros at once
ONE_BY_ONE = 1024  # strings, where zeros do not tell them apart; so many that the search before costs less


def lengths_of_strings(data: npt.NDArray[np.uint8], offset: int, count: int) -> npt.NDArray[np.int64]:
    """The lengths in bytes, int64[count], of the strings of an array that begins at `offset`.

    Raises:
        ValueError: the array reaches beyond the end of `data`.
    """
    parts = [np.empty(0, np.int64)]
    while count > 0:
        window = data[offset : offset + WINDOW]
        some = _lengths_by_zeros(window)[:count]
        if len(some) < ONE_BY_ONE:
            some = _lengths_one_by_one(data.data, offset, min(ONE_BY_ONE, count))
        parts.append(some)
        offset, count = offset + size_of_strings(some), count - len(some)
        if offset > len(data):
            raise ValueError("an array of strings reaches beyond the end of the file")
    return np.concatenate(parts)


def _lengths_by_zeros(window: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The lengths of those strings at the beginning of `window` that zeros tell apart; there may be none."""
    is_zero = window == 0
    two = is_zero[:-1] & is_zero[1:]
    four = two[:-2] & two[2:]
    places = np.flatnonzero(four[:-3] & four[3:]) - 1  # seven zeros stand behind each
    if not len(places) or places[0] != 0:
        return np.empty(0, np.int64)
    lengths = window[places].astype(np.int64)
    # A length is where the string before it ends. The first place that is not so is none, and neither are those behind.
    is_next = places[1:] == places[:-1] + _LENGTH.size + lengths[:-1]
    num_next = len(is_next) if is_next.all() else int(np.argmin(is_next))
    return lengths[: 1 + num_next]


def _lengths_one_by_one(data: memoryview, offset: int, count: int) -> npt.NDArray[np.int64]:
    """
    Raises:
        ValueError: a length is beyond the end of `data`.
    """
    lengths, last = list[int](), len(data) - _LENGTH.size
    for _ in range(count):
        if offset > last:
            raise ValueError("an array of strings reaches beyond the end of the file")
        (length,) = _LENGTH.unpack_from(data, offset)
        lengths.append(min(length, len(data)))  # so that a damaged one fits its type
        offset += _LENGTH.size + length
    return np.asarray(lengths, np.int64)


def size_of_strings(lengths: npt.NDArray[np.int64]) -> int:
    """The bytes of an array of strings that have these lengths."""
    return int(lengths.sum()) + _LENGTH.size * len(lengths)


def decode_strings(data: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64]) -> list[str]:
    """The strings of an array of which `data` are all bytes.

    Raises:
        UnicodeDecodeError: a string is not UTF-8.
    """
    if not len(lengths):
        return []
    starts = np.cumsum(lengths + _LENGTH.size) - lengths
    # Each string is separated from the one before by a zero, in the place of its length.
    separated, is_kept = np.array(data), np.ones(len(data), np.bool_)
    separated[starts - 1] = 0
    for i in range(2, _LENGTH.size + 1):
        is_kept[starts - i] = False
    strings = separated[is_kept].tobytes().decode("utf-8").split("\0")
    if len(strings) == len(lengths) + 1:
        return strings[1:]
    # A string has a zero in it, which nearly no vocabulary has.
    raw, ends = data.tobytes(), starts + lengths
    return [raw[start:end].decode("utf-8") for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
