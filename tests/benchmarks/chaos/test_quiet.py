"""What has grown during the quiet round is reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.quiet import BASE_POINT, NUM_POINTS, Point, QuietLife

GOOD = Point(
    resident_mib=220.0, descriptors=10, children=0, threads=8, tasks=7, temporary=0, store_kib=6900, log_bytes=315
)


@pytest.mark.parametrize(
    ("change", "failures"),
    [
        ({}, []),
        ({"resident_mib": 229.0}, []),
        ({"resident_mib": 231.0}, ["resident MiB: 220 after a fifth of the requests, 231 at the end"]),
        ({"descriptors": 13}, ["descriptors: 10 after a fifth of the requests, 13 at the end"]),
        ({"children": 1, "temporary": 2}, ["children: 0 after a fifth of the requests, 1 at the end",
                                           "temporary: 0 after a fifth of the requests, 2 at the end"]),
    ],
)  # fmt: skip
def test_what_has_grown_is_reported(change: dict[str, Any], failures: list[str]) -> None:
    life = QuietLife("http://127.0.0.1:1", 0, Path(), seed=0)
    warming = dataclasses.replace(GOOD, resident_mib=100.0)  # before the base, where everything is used first
    between = [GOOD] * (NUM_POINTS - BASE_POINT - 1)
    life.points = [*[warming] * BASE_POINT, *between, dataclasses.replace(GOOD, **change)]
    assert life.growth() == failures
