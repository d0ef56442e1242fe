"""Parses JSON from clients within limits, so that it does not cost more than its bytes suggest.

A parser holds the interpreter lock from beginning to end. Four megabytes of text take it a few milliseconds, four
megabytes of empty lists take seconds. So the lists and values of a large body are counted first, by array operations,
which leave the lock to the other threads.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from server.protocol.errors import ApiError, invalid_json

# What is larger is parsed and checked in a worker thread. Bodies of so many bytes take 2 to 3 ms at worst: messages or
# tools of a few letters each. One that holds a text of this length is checked in 0.1 ms, and goes to a worker thread
# for its tokens in any case.
MAX_INLINE_BYTES = 16 << 10
MIN_COUNTED_BYTES = 64 << 10  # a body that is no larger cannot have too many values
MAX_CONTAINERS = 1 << 15  # lists and objects in one body
MAX_KEYS = 1 << 15  # of all objects in one body together
MAX_VALUES = 1 << 19  # values in one body; 64 prompts of 8,192 token ids each have as many

ARGUMENTS = "text of all calls' arguments"  # of a conversation, in errors
FLOAT_CHARS = 24  # of the longest number that is no integer, as JSON writes it
_BITS_PER_DIGIT = 3  # at least
_WRITER = json.JSONEncoder(ensure_ascii=False)

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPENING = b"[{"


def parse_json(body: bytes | str, what: str = "body") -> Any:
    """The value of `body`, called `what` in errors; raises ApiError where it is not JSON, or has too many values."""
    refuse_too_many_values([body], what)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid_json(error, what) from error


def is_deeper(value: Any, most: int) -> bool:
    """Whether lists and objects are nested more than `most` levels deep in a decoded value."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        if not level:
            return False
        level = [
            part
            for outer in level
            for part in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(part, dict | list)
        ]
    return bool(level)


def is_longer(value: Any, most: int) -> bool:
    """Whether a decoded value has more than `most` characters and values; it looks at no more than these."""
    return size_of(value, most) > most


def size_of(value: Any, most: int, each: int = 1) -> int:
    """The number of characters, as in JSON, and values in a decoded value; it looks at no more than `most`.

    Where there are more, some number above it is returned; below 0, nothing is looked at. Each value adds `each`.
    """
    rest, size = [value], 0
    while rest and size <= most:
        part = rest.pop()
        size += each
        if isinstance(part, str):
            size += _written_size(part, most)
        elif isinstance(part, dict | list):
            if size + each * len(part) > most:
                return size + each * len(part)
            if isinstance(part, dict):
                size += _written_size("".join(part), most)
            rest += part.values() if isinstance(part, dict) else part
        elif isinstance(part, float):
            size += FLOAT_CHARS
        elif isinstance(part, int):
            size += part.bit_length() // _BITS_PER_DIGIT
    return size


def _written_size(text: str, most: int) -> int:
    """The number of characters between the quotes of `text` in JSON; its length where that alone is above `most`."""
    if len(text) > most or (text.isprintable() and '"' not in text and "\\" not in text):
        return len(text)
    return len(_WRITER.encode(text)) - len('""')


def refuse_too_many_values(texts: Sequence[bytes | str], whole: str) -> None:
    """Raises ApiError where JSON texts, called `whole` together, have more values than one body may have."""
    if sum(map(len, texts)) <= MIN_COUNTED_BYTES:
        return
    parts = [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in texts]
    codes = np.frombuffer(b"".join(parts), np.uint8)
    opens = (codes == _OPENING[0]) | (codes == _OPENING[1])
    marks = (
        (opens, "lists and objects", MAX_CONTAINERS),
        (codes == _COLON, "names", MAX_KEYS),
        (codes == _COMMA, "values", MAX_VALUES),
    )
    if all(np.count_nonzero(found) <= most for found, _, most in marks):
        return
    # There are many; perhaps they are within strings, where they mean nothing.
    outside = ~np.concatenate([_in_strings(np.frombuffer(part, np.uint8)) for part in parts if part])
    for found, what, most in marks:
        count = int(np.count_nonzero(found & outside))
        if count > most:
            raise ApiError(
                f"the {whole} has at least {count} {what}; at most {most} are allowed", code="too_many_values"
            )


def _in_strings(codes: np.ndarray) -> np.ndarray:
    """The bytes of a JSON text that are within strings, bool[n]; closing quotes count as outside."""
    quotes = codes == _QUOTE
    backslashes = codes == _BACKSLASH
    if backslashes.any():
        # A quote is escaped where an odd number of backslashes precedes it.
        place = np.arange(len(codes), dtype=np.int32)
        last_other = np.maximum.accumulate(np.where(backslashes, np.int32(-1), place))
        before = np.concatenate([np.array([-1], np.int32), last_other[:-1]])
        quotes &= (place - 1 - before) % 2 == 0
    # The count of quotes may overflow, because only its lowest bit matters.
    in_strings: np.ndarray = (np.cumsum(quotes, dtype=np.uint8) & 1).astype(bool)
    return in_strings
