"""The strings of an array in a GGUF file: each is its length, 8 bytes, little-endian, and then its bytes.

Vocabularies have up to 500,000 of them, for which a start waits, so they are not read one by one: nearly all lengths
are from 1 to 255, and so one byte and seven zeros.
"""

import struct

import numpy as np
import numpy.typing as npt

_LENGTH = struct.Struct("<Q")
WINDOW = 64 << 10  # bytes that are searched for zeros at once
ONE_BY_ONE = 256  # strings, where zeros do not delimit them, or too few for a search


def lengths_of_strings(data: npt.NDArray[np.uint8], offset: int, count: int) -> npt.NDArray[np.int64]:
    """The byte lengths, int64[count], of the strings of an array at `offset`; raises ValueError at the end."""
    parts = [np.empty(0, np.int64)]
    while count > 0:
        some = parts[0]
        if count >= ONE_BY_ONE:
            some = _lengths_by_zeros(data[offset : offset + WINDOW])[:count]
        if len(some) < ONE_BY_ONE:
            some = _lengths_one_by_one(data.data, offset, min(ONE_BY_ONE, count))
        parts.append(some)
        offset, count = offset + size_of_strings(some), count - len(some)
        if offset > len(data):
            raise ValueError("an array of strings reaches beyond the end of the file")
    return np.concatenate(parts)


def _lengths_by_zeros(window: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The lengths of those strings at the beginning of `window` that zeros delimit; there may be none."""
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
    """The lengths of the next `count` strings; raises ValueError if a length lies beyond the end of `data`."""
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
    """The strings of an array of which `data` are all bytes; raises UnicodeDecodeError."""
    starts = np.cumsum(lengths + _LENGTH.size) - lengths
    is_kept = np.ones(len(data), np.bool_)
    for i in range(2, _LENGTH.size + 1):
        is_kept[starts - i] = False
    # The last byte of each length is zero, and stays to separate its string from the one before.
    joined = data[is_kept].tobytes()
    if joined.count(b"\0") == len(lengths):
        try:
            return joined.decode("utf-8").split("\0")[1:]
        except UnicodeDecodeError:
            pass  # the strings one by one tell the place within a string
    raw, ends = data.tobytes(), starts + lengths
    return [raw[start:end].decode("utf-8") for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
