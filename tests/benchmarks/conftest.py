"""A stub of a server, and of the servers that rounds start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from benchmarks.serving import alternation
from tests.benchmarks.serving.stand_ins import Bench
from tests.fakes.stub_server import StubServer


@pytest.fixture
async def stub() -> AsyncIterator[StubServer]:
    stub = StubServer()
    async with stub.server:
        yield stub


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """In the place of the servers that rounds start, of the loads on them, and of what others take meanwhile."""
    bench = Bench()
    monkeypatch.setattr(alternation, "started", bench.started)
    monkeypatch.setattr(alternation, "measure_in_subprocess", bench.measure)
    monkeypatch.setattr(alternation, "OtherLoad", lambda: bench)
    return bench
