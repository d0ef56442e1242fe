"""Requests with many answers are queued in several turns of the loop, between which other things happen."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.interface.types import FinishReason, QueueFull
from server.api.openai.completions import CompletionCall
from server.serving.served_models import ServedModels
from server.serving.submit import QUEUED_AT_ONCE, Submission
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import StartServer, eventually

MANY = 4 * QUEUED_AT_ONCE


async def generate(served: ServedModels, **body: Any) -> list[FinishReason]:
    """The answers' reasons, or the refusal."""
    request = CompletionCall.parse({"prompt": "ab", **body}).request
    async with served.generate(served.first, Submission(request)) as generation:
        return [answer.finish_reason for answer in await generation.collect()]


async def test_of_two_requests_for_which_there_is_no_room_together_one_is_answered(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True, max_num_queued=MANY + MANY // 2)
    server = await start_server(engine)
    tasks = [asyncio.create_task(generate(server.served, prompt=["ab"] * MANY)) for _ in range(2)]
    await eventually(lambda: any(task.done() for task in tasks))
    assert len(engine.running) == MANY
    engine.step(3)
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(end, QueueFull) for end in ends] == [False, True]
    assert ends[0] == [FinishReason.STOP] * MANY


async def test_a_small_request_does_not_wait_for_the_answers_of_a_large_one(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    large = asyncio.create_task(generate(server.served, prompt=["ab"] * MANY))
    while not engine.submitted and not large.done():
        await asyncio.sleep(0)
    assert len(engine.submitted) < MANY
    small = asyncio.create_task(generate(server.served, prompt="c"))
    await eventually(lambda: len(engine.submitted) == MANY + 1)
    assert [bytes(stream.prompt_token_ids) for stream in engine.submitted].index(b"c") < MANY
    engine.step(3)
    assert (await small, await large) == ([FinishReason.STOP], [FinishReason.STOP] * MANY)


async def test_what_ends_everything_ends_also_what_is_being_queued(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    large = asyncio.create_task(generate(server.served, prompt=["ab"] * MANY))
    while not engine.submitted and not large.done():
        await asyncio.sleep(0)
    server.served.abort_all()
    assert await asyncio.wait_for(large, PATIENCE_S) == [FinishReason.ABORT] * MANY
    later = asyncio.create_task(generate(server.served, prompt="c"))
    await eventually(lambda: bool(engine.running))
    engine.step(3)
    assert await later == [FinishReason.STOP]
