"""The limits of one key, as the file of keys states them, and the headers that tell a client of them."""

from __future__ import annotations

import math
from typing import NamedTuple

NO_LIMIT = "-"  # in the file of keys
MAX_LIMIT = 10**12
_MOST_DIGITS = 20


class KeyLimits(NamedTuple):
    """None is no limit."""

    requests_per_second: float | None = None
    max_streams: int | None = None  # at once
    tokens_per_minute: int | None = None  # of prompts and answers

    @property
    def is_limited(self) -> bool:
        return self != NO_LIMITS


NO_LIMITS = KeyLimits()


def parse_limits(words: list[str]) -> KeyLimits:
    """Reads `rate streams tokens/min`, of which the last ones may be missing.

    Raises:
        ValueError: a limit is not a number that it can be; the message is the end of a sentence.
    """
    if len(words) > len(KeyLimits._fields):
        raise ValueError(f"behind the limits comes nothing, not {words[len(KeyLimits._fields)][:40]!r}")
    rate, streams, tokens = [*words, *[NO_LIMIT] * (len(KeyLimits._fields) - len(words))]
    return KeyLimits(_rate(rate), _count("streams at once", streams), _count("tokens a minute", tokens))


def _rate(word: str) -> float | None:
    if word == NO_LIMIT:
        return None
    try:
        rate = float(word)
    except ValueError:
        rate = math.nan
    if not 0.001 <= rate <= MAX_LIMIT:
        raise ValueError(f"requests a second must be a number from 0.001 to {MAX_LIMIT} or '-', not {word[:40]!r}")
    return rate


def _count(what: str, word: str) -> int | None:
    if word == NO_LIMIT:
        return None
    if not (word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS and 1 <= int(word) <= MAX_LIMIT):
        raise ValueError(f"{what} must be a whole number from 1 to {MAX_LIMIT} or '-', not {word[:40]!r}")
    return int(word)


def duration(seconds: float) -> str:
    """A duration as OpenAI writes it in headers: `12ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
