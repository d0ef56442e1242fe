"""Reads a generation while the fake engine steps at a given pace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from server.generation.generation import Generation
from server.generation.output_sequence import Delta
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S


async def read_at_pace(engine: FakeEngineClient, generation: Generation, sizes: Sequence[int]) -> list[Delta]:
    """All deltas of a generation whose tokens arrive in groups of the given sizes."""
    deltas: list[Delta] = []

    async def read() -> None:
        async for batch in generation:
            deltas.extend(batch)

    reading = asyncio.create_task(read())
    for size in sizes:
        engine.step(size)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.wait_for(reading, PATIENCE_S)
    return deltas
