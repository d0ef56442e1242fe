"""Generations over the fake engine: deltas, merging, stop strings, aborts, counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from engine.interface.types import EngineError, FinishReason, QueueFull
from server.api.openai.completions import CompletionCall
from server.generation.generation import Generation
from server.generation.observer import GenerationObserver
from server.generation.output_sequence import Delta
from server.generation.prompts import prepare_here
from server.serving.submit import QUEUED_AT_ONCE, queue
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import EOS, FakeTextModel
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually
from tests.server.support.pacing import read_at_pace


async def submit(engine: FakeEngineClient, *, observers: Sequence[GenerationObserver] = (), **body: Any) -> Generation:
    if not engine.is_alive:
        engine.start(asyncio.get_running_loop())
    request = CompletionCall.parse(body).request
    text_model = FakeTextModel().model
    prompts = prepare_here(request, text_model, engine.client)
    return await queue(engine.client, request, prompts, (), text_model.tokenizer, observers)


async def read_some(generation: Generation) -> list[Delta]:
    return await asyncio.wait_for(generation.__anext__(), PATIENCE_S)


async def test_a_thousand_answers_are_queued_in_many_turns_of_the_loop() -> None:
    engine = FakeEngineClient(is_manual=True)
    submitting = asyncio.create_task(submit(engine, prompt=[f"{place}" for place in range(64)], n=16))
    queued, most = 0, 0
    while not submitting.done():
        await asyncio.sleep(0)
        most, queued = max(most, len(engine.submitted) - queued), len(engine.submitted)
    assert (queued, most) == (1024, QUEUED_AT_ONCE)
    prompts = [bytes(stream.prompt_token_ids).decode() for stream in engine.submitted]
    assert prompts == [f"{place}" for place in range(64) for _ in range(16)]
    await (await submitting).aclose()


@pytest.mark.parametrize("is_refused", [True, False])
async def test_none_of_many_answers_is_left_in_the_queue(is_refused: bool) -> None:
    """Where the last one is refused, and where the client leaves while they are being queued."""
    engine = FakeEngineClient(is_manual=True, max_num_queued=3 * QUEUED_AT_ONCE - 1 if is_refused else 1024)
    submitting = asyncio.create_task(submit(engine, prompt=["a", "b", "c"], n=QUEUED_AT_ONCE))
    while not submitting.done():
        await asyncio.sleep(0)
        if not is_refused and len(engine.submitted) > QUEUED_AT_ONCE:
            submitting.cancel()
    with pytest.raises(QueueFull if is_refused else asyncio.CancelledError):
        await submitting
    assert len(engine.submitted) > QUEUED_AT_ONCE
    assert not engine.running


async def test_what_piles_up_is_one_delta() -> None:
    engine = FakeEngineClient(is_manual=True)
    generation = await submit(engine, prompt="abcdef")
    engine.step(3)
    assert await read_some(generation) == [Delta(0, "abc", [97, 98, 99], None)]
    engine.step(9)
    assert await read_some(generation) == [Delta(0, "def", [100, 101, 102, EOS], FinishReason.STOP, matched_stop=EOS)]
    with pytest.raises(StopAsyncIteration):
        await generation.__anext__()
    assert generation.usage.num_completion_tokens == 7


@pytest.mark.parametrize("sizes", [[1] * 20, [2] * 10, [3] * 7, [7, 1, 12], [20]])
async def test_every_pace_gives_the_same_text_and_counts(sizes: list[int]) -> None:
    text = "wave é🌊 ENd END tail"
    engine = FakeEngineClient(respond=lambda *_: list(text.encode()), is_manual=True)
    generation = await submit(engine, prompt="x", max_tokens=100, stop=["END", "zzz"])
    deltas = await read_at_pace(engine, generation, [*sizes, 20])
    assert "".join(delta.text for delta in deltas) == "wave é🌊 ENd "
    token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
    assert token_ids == list("wave é🌊 ENd END".encode())
    assert generation.usage.num_completion_tokens == len(token_ids)
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert all(delta.text for delta in deltas[:-1])
    assert engine.running == {}


async def test_tokens_without_text_come_with_the_next_text() -> None:
    engine = FakeEngineClient(is_manual=True)
    generation = await submit(engine, prompt="é!")
    reading = asyncio.create_task(read_some(generation))
    engine.step()
    await asyncio.sleep(0.005)
    assert not reading.done()
    engine.step()
    assert await reading == [Delta(0, "é", [0xC3, 0xA9], None)]
    await generation.aclose()


@pytest.mark.parametrize("stop", [None, "a\ufffd"])
async def test_half_a_character_at_the_end_is_left_out(stop: str | None) -> None:
    engine = FakeEngineClient(is_manual=True)
    generation = await submit(engine, prompt="aé", max_tokens=2, stop=stop)
    engine.step(2)
    assert await read_some(generation) == [Delta(0, "a", [97, 0xC3], FinishReason.LENGTH)]


async def test_abort_delivers_what_is_there_and_ends_with_abort() -> None:
    engine = FakeEngineClient(is_manual=True)
    generation = await submit(engine, prompt="abcX", n=2, stop="XY")
    engine.step(4)
    generation.abort()
    deltas = [delta async for batch in generation for delta in batch]
    assert sorted((delta.index, delta.text, delta.finish_reason) for delta in deltas) == [
        (0, "abcX", FinishReason.ABORT),
        (1, "abcX", FinishReason.ABORT),
    ]
    assert generation.finish_reason is FinishReason.ABORT
    assert generation.usage.num_completion_tokens == 8


async def test_abort_is_told_even_if_the_model_ended_in_the_same_moment() -> None:
    engine = FakeEngineClient(is_manual=True)
    generation = await submit(engine, prompt="ab")
    engine.step(5)
    generation.abort()
    assert await read_some(generation) == [Delta(0, "ab", [97, 98, EOS], FinishReason.ABORT)]


@pytest.mark.parametrize("n", [1, 4])
async def test_leaving_by_cancellation_aborts(n: int) -> None:
    engine = FakeEngineClient(is_manual=True)

    async def run() -> None:
        async with await submit(engine, prompt="ab", n=n) as generation:
            await generation.collect()

    running = asyncio.create_task(run())
    await eventually(lambda: len(engine.running) == n)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert engine.running == {}
    assert len(engine.aborted) == n
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("n", [1, 2])
async def test_an_engine_error_is_raised(n: int) -> None:
    engine = FakeEngineClient(is_manual=True)
    async with await submit(engine, prompt="ab", n=n) as generation:
        engine.fail("the device is gone")
        with pytest.raises(EngineError, match="the device is gone"):
            await generation.collect()
    with pytest.raises(StopAsyncIteration):
        await generation.__anext__()


async def test_several_choices_wait_for_a_slow_reader() -> None:
    """However far the engine runs ahead, no event leaves a mailbox before the reader asks for more."""
    engine = FakeEngineClient(is_manual=True, max_model_len=1000)
    generation = await submit(engine, prompt="a" * 400, n=4, max_tokens=400)
    engine.step()
    await read_some(generation)
    for _ in range(399):
        engine.step()
        await asyncio.sleep(0)
    assert [stream.num_events_read for stream in engine.submitted] == [1] * 4
    answers = await generation.collect()
    assert [len(answer.text) for answer in answers] == [399] * 4
    await generation.aclose()
