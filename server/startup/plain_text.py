"""Removes control characters from text that a terminal shows."""

import re

# Control characters except tab and line feed, and the characters that change the direction of text.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def without_controls(text: str) -> str:
    """`text` without the characters with which it could control the terminal; rich leaves ESC in."""
    return _UNSAFE.sub("", text)


def one_line(text: str) -> str:
    """`text` as `without_controls` leaves it, in one line: a name in a table, a line of progress."""
    return " ".join(without_controls(text).splitlines())
