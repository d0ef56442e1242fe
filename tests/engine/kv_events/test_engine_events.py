"""An engine publishes the pages of its requests from its first client on until its last one has gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks.microbenchmarks.simulated_device import SimulatedEngine
from cache.page import PageEvent, PagesCleared, PageStored
from engine import engine as engine_file
from engine.client import EngineClient
from engine.interface.address import KVEndpoint
from engine.interface.config import EngineConfig
from sampling.host.params import SamplingParams


class Recorder:
    """In the place of a publisher, which needs libraries that are not always there."""

    def __init__(self, *arguments: Any, windows: tuple[int, ...], has_array_events: bool) -> None:
        self.endpoint, self.topic, pool, self.page_size = arguments
        self.events: list[PageEvent] = []
        self.windows = windows
        self.has_array_events = has_array_events
        self.is_closed = False
        pool.listener = self.events.append

    def close(self) -> None:
        self.is_closed = True


async def test_an_engine_tells_of_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Recorder] = []

    def make(*arguments: Any, **options: Any) -> Recorder:
        made.append(Recorder(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(engine_file, "KVEventPublisher", make)
    config = EngineConfig(
        max_num_seqs=1,
        max_num_batched_tokens=64,
        page_size=16,
        num_pages=20,
        kv_events="tcp://*:9",
        kv_events_topic="t",
    )
    client = EngineClient(SimulatedEngine(config, step_seconds=0.0))
    client.start(asyncio.get_running_loop())
    try:
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        async for _ in client.submit(list(range(50)), params):
            pass
        assert await client.lifecycle.reset_prefix_cache()
    finally:
        client.shutdown()
    (recorder,) = made
    assert (recorder.endpoint, recorder.topic, recorder.page_size) == (KVEndpoint("*", 9), "t", 16)
    *stored, cleared = recorder.events
    tokens = [token for event in stored if isinstance(event, PageStored) for token in event.page_hash.token_ids]
    assert (recorder.windows, recorder.has_array_events) == ((0,), False)
    assert tokens == list(range(48))
    assert cleared == PagesCleared()
    assert recorder.is_closed
