from __future__ import annotations

from dataclasses import replace

from benchmarks.serving import peer_loads
from server.cli.bench.load.report import Report
from server.cli.bench.load.trace import Trace


def test_figures_of_requests_that_all_failed() -> None:
    report = Report.of([Trace(0.0, error="HTTP 500")], concurrency=1, num_output_tokens=8)
    assert peer_loads.figures_of(report) == {}


def test_loads() -> None:
    assert [peer_loads.decode(clients).workload.num_requests for clients in (1, 4, 16, 64)] == [6, 24, 48, 128]
    load = peer_loads.prefix().of_size(4).of("http://h:1", "m", 7)
    assert load == replace(peer_loads.prefix().workload, url="http://h:1", model="m", seed=7, num_requests=4)
    warm = peer_loads.warm_up(load, seed=8)
    assert (warm.concurrency, warm.num_requests, warm.num_shared_tokens, warm.seed) == (8, 8, 0, 8)
