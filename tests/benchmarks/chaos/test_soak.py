"""A short soak leaves nothing behind, and what a soak leaves behind is reported."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from benchmarks.chaos.__main__ import main
from benchmarks.chaos.soak import Memory, Outcome, Tally, soak
from engine.interface.types import EngineStats, FinishReason
from tests.thoroughness import some


@pytest.mark.parametrize("overlap", some([True, False], 1))
async def test_a_short_soak_leaves_nothing(overlap: bool) -> None:
    outcome = await soak(150, 40, step_seconds=0.0, overlap=overlap, seed=1)
    tally, stats = outcome.tally, outcome.stats
    assert tally.num_requests == sum(tally.endings.values()) == 150
    assert set(tally.endings) == {FinishReason.LENGTH, FinishReason.ABORT}
    assert tally.endings[FinishReason.ABORT] <= tally.num_aborts
    assert tally.num_cached_tokens > 0
    assert stats.num_active_pages == stats.num_running == stats.num_waiting == 0
    assert stats.num_steps <= outcome.max_steps
    assert outcome.pool_error is None


GOOD = Outcome(
    tally=Tally(num_requests=3, num_row_steps=100, endings={FinishReason.LENGTH: 2, FinishReason.ABORT: 1}),
    stats=EngineStats(num_steps=90),
    after_a_third=Memory(rss=200 << 20, num_objects=100_000),
    at_the_end=Memory(rss=201 << 20, num_objects=100_100),
    pool_error=None,
)


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({}, None),
        ({"stats": EngineStats(num_active_pages=2)}, "2 pages leaked"),
        ({"stats": EngineStats(num_running=1, num_waiting=2)}, "1 run and 2 wait"),
        ({"stats": EngineStats(num_steps=101)}, "101 steps; 100 are explained"),
        ({"at_the_end": Memory(rss=260 << 20, num_objects=100_000)}, "memory grew by 60 MiB"),
        ({"at_the_end": Memory(rss=200 << 20, num_objects=110_000)}, "live objects grew by 10.0%"),
        ({"pool_error": "queue count"}, "the pool is not whole: queue count"),
        ({"tally": Tally(num_requests=3, num_row_steps=100)}, "3 streams have not ended"),
    ],
)
def test_what_the_soak_leaves_behind_is_reported(change: dict[str, Any], failure: str | None) -> None:
    failures = dataclasses.replace(GOOD, **change).failures
    if failure is None:
        assert failures == []
    else:
        assert len(failures) == 1
        assert failure in failures[0]


def test_the_round_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--rounds", "soak", "--requests", "60"])
    output = capsys.readouterr().out
    for words in ("requests", "preemptions", "0 active", "live requests"):
        assert words in output
