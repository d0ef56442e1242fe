from __future__ import annotations

import asyncio
from dataclasses import replace

from benchmarks.serving import loads
from benchmarks.serving.loads import chosen_loads, measure_in_subprocess
from server.cli.bench.load.report import Report
from server.cli.bench.load.trace import Trace
from server.cli.bench.load.workload import Workload
from tests.fakes.stub_server import StubServer


def test_figures_of_requests_that_all_failed() -> None:
    report = Report.of([Trace(0.0, error="HTTP 500")], concurrency=1, num_output_tokens=8)
    assert loads.figures_of(report) == {}


def test_loads() -> None:
    assert [loads.decode(clients).workload.num_requests for clients in (1, 4, 16, 64)] == [6, 24, 48, 128]
    load = loads.prefix().with_options(num_requests=4, timeout=None).of("http://h:1", "m", 7)
    assert load == replace(loads.prefix().workload, url="http://h:1", model="m", seed=7, num_requests=4)
    warm = loads.warm_up(load)
    assert (warm.concurrency, warm.num_requests, warm.num_shared_tokens) == (8, 8, 0)
    assert warm.seed != load.seed


def test_chosen_loads() -> None:
    chosen = chosen_loads(["decode", "prefill"], [1, 2], prefill_tokens=99, num_requests=None, keep_alive=False)
    assert [load.name for load in chosen] == ["c1", "c2", "prefill"]
    assert [load.workload.num_prompt_tokens for load in chosen] == [128, 128, 99]
    assert [load.workload.num_requests for load in chosen] == [6, 12, 8]
    assert not any(load.workload.keep_alive for load in chosen)


async def test_clients_run_in_another_process(stub: StubServer) -> None:
    workload = Workload(url=stub.url, model="stub", concurrency=2, num_requests=4, num_output_tokens=9)
    report, clients = await asyncio.to_thread(measure_in_subprocess, workload)
    assert (report.num_requests, report.num_failed, report.num_off_length) == (4, 0, 0)
    assert report.num_output_tokens == 36
    assert report.tokens_per_chunk == 3
    assert report.tokens_per_s > 0
    assert 0 < clients <= 1
