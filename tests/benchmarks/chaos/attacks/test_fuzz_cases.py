"""Fuzz cases are functions of their number, and cover what they are made for."""

from __future__ import annotations

import random

from benchmarks.chaos.attacks.fuzz_cases import MAX_PIECES, FuzzCase


def cases(count: int) -> list[FuzzCase]:
    return [FuzzCase.draw(random.Random(number)) for number in range(count)]


def test_the_same_number_makes_the_same_case() -> None:
    assert cases(50) == cases(50)
    assert len({case.data for case in cases(50)}) > 45


def test_cases_are_sent_in_pieces_that_are_not_too_many() -> None:
    drawn = cases(300)
    assert {case.ending for case in drawn} == {"read", "half-close", "reset", "stall"}
    assert all(len(case.pieces) == len(case.pauses) <= MAX_PIECES for case in drawn)
    assert any(len(case.pieces) > 10 for case in drawn)


def test_cases_hold_requests_handshakes_and_packed_bodies() -> None:
    data = [case.data for case in cases(300)]
    for wanted in (b"HTTP/1.0", b"Upgrade: websocket", b"Content-Encoding: gzip", b"Transfer-Encoding: chunked"):
        assert any(wanted in each for each in data), wanted
