"""What a server under attack has left behind is reported."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from benchmarks.chaos.leaks import MAX_MEMORY_GROWTH, ServerState

STATS = {
    "num_running": 0, "num_waiting": 0, "num_active_pages": 0, "num_cached_pages": 3, "num_free_pages": 7,
    "num_pages": 10, "compiles_after_ready": 0,
}  # fmt: skip
GOOD = ServerState(stats=STATS, num_streams=0, num_descriptors=20, num_tasks=9, resident_bytes=500 << 20)


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({}, None),
        ({"stats": STATS | {"num_active_pages": 2, "num_free_pages": 5}}, "2 pages leaked"),
        ({"stats": STATS | {"num_free_pages": 6}}, "the pool has 9 of its 10 pages"),
        ({"stats": STATS | {"num_waiting": 1}}, "requests are left"),
        ({"num_streams": 1}, "requests are left"),
        ({"stats": STATS | {"compiles_after_ready": 1}}, "1 compiles after readiness"),
        ({"num_descriptors": 40}, "40 descriptors are open; before there were 20"),
        ({"num_tasks": 30}, "30 tasks run; before there were 9"),
        ({"resident_bytes": (501 << 20) + MAX_MEMORY_GROWTH}, "memory grew by"),
    ],
)
def test_what_is_left_is_reported(change: dict[str, Any], failure: str | None) -> None:
    failures = dataclasses.replace(GOOD, **change).leaks_since(GOOD)
    if failure is None:
        assert failures == []
    else:
        assert len(failures) == 1
        assert failure in failures[0]
