from __future__ import annotations

import argparse

import pytest

from benchmarks.overlap import Rate, compare, compare_all, parse_arguments
from server.command.bench.load.workload import Workload

SPEEDS = {"bare": 100.0, "synchronous": 50.0, "overlapped": 75.0, "SSE": 90.0}
CLIENTS = {"SSE": 0.04}  # of the processors


class StubWays:
    """Variants of known speed; each call is noted with its load."""

    def __init__(self) -> None:
        self.turns: list[tuple[str, int]] = []
        self.loads: list[Workload] = []

    def decode(self, way: str, load: Workload) -> Rate:
        self.turns.append((way, load.seed))
        self.loads.append(load)
        return Rate(SPEEDS[way] * load.concurrency, CLIENTS.get(way, 0.0))


def test_variants_alternate_and_get_the_same_prompts() -> None:
    stub = StubWays()
    ways = {way: lambda load, way=way: stub.decode(way, load) for way in SPEEDS}
    loads = [Workload(url="", model="stub", concurrency=2, seed=seed) for seed in (5, 6, 7)]
    comparison = compare(ways, loads)
    assert stub.turns == [(way, seed) for seed in (5, 6, 7) for way in SPEEDS]
    assert comparison.rates("overlapped") == [150.0] * 3
    assert comparison.to_dict()["ratios_without_clients"] == {"SSE": pytest.approx(0.9 / 0.96)}
    assert comparison.to_dict()["ratios"] == {"SSE/bare": 0.9, "overlapped/synchronous": 1.5}


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    stub = StubWays()
    ways = {way: lambda load, way=way: stub.decode(way, load) for way in SPEEDS}
    options = argparse.Namespace(streams=[1, 16], output_len=128, repeats=2, seed=0, max_others=1.0, num_pages=97)
    comparisons = compare_all(ways, "stub", options)
    assert [comparison.num_streams for comparison in comparisons] == [1, 16]
    header, _, line, *_ = capsys.readouterr().out.splitlines()
    fractions = ["SSE/bare", "overlapped/synchronous", "SSE/bare", "without", "clients"]
    assert header.split() == ["streams", *SPEEDS, *fractions, "others"]
    assert line.split()[:3] == ["16", "1,600.0", "(1,600.0..1,600.0)"]
    assert line.split()[-4:-1] == ["0.900", "1.500", "0.938"]
    # First the warm-up, then streams that fill the pages of both engines, and then each repeat with new prompts.
    assert [way for way, _ in stub.turns[4:8]] == ["overlapped", "SSE"] * 2
    filling = stub.loads[4:8:2]
    assert sum(load.concurrency * (load.num_prompt_tokens + load.num_output_tokens) for load in filling) >= 97 * 32
    assert len({seed for _, seed in stub.turns}) == 1 + 2 + 2 * 2


def test_pages_are_as_many_as_the_streams_need() -> None:
    assert parse_arguments(["--streams", "4", "16", "--output-len", "97"]).num_pages == 16 * 6 + 1
    assert parse_arguments(["--streams", "4", "--num-pages", "200"]).num_pages == 200
