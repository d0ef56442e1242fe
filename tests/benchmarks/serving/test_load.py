from __future__ import annotations

import asyncio

from benchmarks.serving.load import measure_apart, measure_with_clients
from server.cli.bench.load.workload import Workload
from tests.fakes.stub_server import StubServer


async def test_measure_apart_runs_in_another_process(stub: StubServer) -> None:
    workload = Workload(url=stub.url, model="stub", concurrency=2, num_requests=4, num_output_tokens=9)
    report = await asyncio.to_thread(measure_apart, workload)
    assert (report.num_requests, report.num_failed, report.num_off_length) == (4, 0, 0)
    assert report.num_output_tokens == 36
    assert report.tokens_per_chunk == 3
    assert report.tokens_per_s > 0


async def test_what_the_clients_take_of_the_processors_is_told(stub: StubServer) -> None:
    workload = Workload(url=stub.url, model="stub", concurrency=1, num_requests=1, num_output_tokens=9)
    report, clients = await asyncio.to_thread(measure_with_clients, workload)
    assert report.num_output_tokens == 9
    assert 0 < clients <= 1
