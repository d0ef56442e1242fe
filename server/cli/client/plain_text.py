"""Text of others that is shown in a terminal."""

from __future__ import annotations

import re

# What could steer the terminal: control characters but tab and line feed, and what turns text around.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def without_controls(text: str) -> str:
    """`text` without the characters by which a model's output could steer the terminal."""
    return _UNSAFE.sub("", text)
