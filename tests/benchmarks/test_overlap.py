from __future__ import annotations

import random

import pytest

from benchmarks.microbenchmarks.decoding import greedy
from benchmarks.overlap import (
    PAGE_SIZE,
    Rate,
    compare,
    parse_arguments,
    ratios,
    use_all_pages,
    without_clients,
)
from benchmarks.serving.alternation import finish
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


def test_ways_alternate_with_the_same_prompts_after_their_pages_are_filled(capsys: pytest.CaptureFixture[str]) -> None:
    stub = StubWays()
    ways = {way: lambda load, way=way: stub.decode(way, load) for way in SPEEDS}
    options = parse_arguments("--streams 1 16 --output-len 128 --rounds 2 --num-pages 97".split())
    turns = compare(ways, "stub", options)
    assert [(turn.load, turn.contender) for turn in turns[:8]] == [
        ("1 streams", way) for way in (*SPEEDS, *reversed(SPEEDS))
    ]
    assert without_clients(turns, ways) == {
        "1 streams": {"SSE": pytest.approx(0.9 / 0.96)}, "16 streams": {"SSE": pytest.approx(0.9 / 0.96)}
    }  # fmt: skip
    assert finish(turns, list(SPEEDS), options, "benchmarks.overlap", [], ratios=ratios(ways)) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "load figure bare synchronous overlapped SSE SSE/bare overlapped/synchronous"
    assert "16 streams full tok/s 1,600 (1,600..1,600) 800.0 (800.0..800.0)" in " ".join(lines)
    assert "0.900 1.500" in " ".join(lines)
    # First the warm-up, then streams that fill the pages of both engines, and then each round with new prompts.
    filling = [load for load in stub.loads[4:8] if load.concurrency == 16]
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
            used.update(page.page_id for request in plan.requests for page in request.tables[0])
            scheduler.commit(plan, StepResult([draw.randrange(50_000) for _ in range(sum(plan.samples))]))
        return Rate(1.0)

    load = Workload(url="", model="stub", concurrency=streams, num_prompt_tokens=32, num_output_tokens=output_len)
    use_all_pages({"overlapped": decode, "SSE": lambda load: Rate(1.0)}, [load], options.num_pages)
    assert len(used) == options.num_pages - 1


def test_pages_are_as_many_as_the_streams_need_and_the_context_of_the_model() -> None:
    assert parse_arguments(["--streams", "4", "64", "--output-len", "97"]).num_pages == 64 * 6 + 1
    assert parse_arguments(["--streams", "4"]).num_pages == 8192 // 32 + 1
    assert parse_arguments(["--streams", "4", "--num-pages", "200"]).num_pages == 200
