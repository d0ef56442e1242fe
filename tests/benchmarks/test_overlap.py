from __future__ import annotations

import argparse
import random

import pytest

from benchmarks.bare.bare_loop import greedy
from benchmarks.overlap import PAGE_SIZE, Rate, compare, compare_all, parse_arguments, use_all_pages
from cache.pool import PagePool
from engine.schedule.request import Request
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence_buffer import SequenceBuffer
from engine.schedule.step_plan import StepResult
from server.cli.bench.load.workload import Workload

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
    filling = [
        load for way, load in zip((way for way, _ in stub.turns), stub.loads, strict=True) if load.concurrency == 16
    ]
    assert [way for way, _ in stub.turns[4:8]] == ["overlapped", "SSE"] * 2
    assert {load.num_output_tokens for load in filling} == {128}
    assert len({seed for _, seed in stub.turns}) == 1 + 2 + 2 * 2


@pytest.mark.parametrize("streams", [1, 16, 64])
@pytest.mark.parametrize("output_len", [32, 96, 97, 128])
def test_every_page_is_used_before_the_first_figure(streams: int, output_len: int) -> None:
    options = parse_arguments(["--streams", str(streams), "--output-len", str(output_len)])
    pool = PagePool(options.num_pages)
    scheduler = Scheduler(
        pool, SequenceBuffer(64, 8192, 256), page_size=PAGE_SIZE, max_num_batched_tokens=1024, chunk_alignment=64,
        vocab_size=50_000, eos_token_ids=frozenset(),
    )  # fmt: skip
    used: set[int] = set()
    draw = random.Random(0)

    def decode(load: Workload) -> Rate:
        for index, prompt in enumerate(load.token_prompts()):
            length = len(prompt) + load.num_output_tokens
            scheduler.add(Request(f"{load.seed}-{index}", prompt, greedy(load.num_output_tokens), 0, max_length=length))
        while (plan := scheduler.schedule()) is not None:
            used.update(page.page_id for request in plan.requests for page in request.pages)
            scheduler.commit(plan, StepResult([draw.randrange(50_000) for _ in range(sum(plan.samples))]))
        return Rate(1.0)

    load = Workload(url="", model="stub", concurrency=streams, num_prompt_tokens=32, num_output_tokens=output_len)
    use_all_pages({"overlapped": decode, "SSE": lambda load: Rate(1.0)}, [load], options.num_pages)
    assert len(used) == options.num_pages - 1


def test_pages_are_as_many_as_the_streams_need_and_the_context_of_the_model() -> None:
    assert parse_arguments(["--streams", "4", "64", "--output-len", "97"]).num_pages == 64 * 6 + 1
    assert parse_arguments(["--streams", "4"]).num_pages == 8192 // 32 + 1
    assert parse_arguments(["--streams", "4", "--num-pages", "200"]).num_pages == 200
