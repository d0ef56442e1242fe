"""The limits in a line of the file of keys, and OpenAI's way to write durations."""

from __future__ import annotations

import pytest

from server.admission.limits.key_limits import NO_LIMITS, KeyLimits, duration, parse_limits


@pytest.mark.parametrize(
    ("line", "limits"),
    [
        ("", NO_LIMITS),
        ("- - -", NO_LIMITS),
        ("0.5", KeyLimits(0.5)),
        ("10 4", KeyLimits(10, 4)),
        ("- - 90000", KeyLimits(None, None, 90000)),
        ("2 3 4", KeyLimits(2, 3, 4)),
    ],
)
def test_limits_are_read(line: str, limits: KeyLimits) -> None:
    assert parse_limits(line.split()) == limits
    assert limits.is_limited == (limits != NO_LIMITS)


@pytest.mark.parametrize(
    "line",
    [
        "0", "-1", "nan", "inf", "x", "1 0", "1 1.5", "1 -2", "1 1 0", "1 1 ٣", "1 1 1 1",
        "1 " + "0" * 19 + "1" + "0" * 20, "1 1 " + "9" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_limit_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"not '"):
        parse_limits(line.split())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"), (-3, "0ms"), (0.0115, "12ms"), (0.9999, "1s"), (1, "1s"), (1.5, "1.5s"), (59.9999, "1m0s"),
        (360, "6m0s"), (179.56, "2m59.56s"), (3600, "1h0m0s"), (86399, "23h59m59s"),
    ],
)  # fmt: skip
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text
