"""Deltas that are pushed: the same as those that are read, however often the two take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.interface.types import EngineError, FinishReason
from sampling.host.params import SamplingParams
from server.generation.generation import Generation
from server.generation.observer import GenerationObserver
from server.generation.output_sequence import Delta, OutputSequence
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import EOS
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually
from tests.server.generation.test_generation import submit

TEXT = "wave é🌊 ENd END tail " * 3


class Pipe:
    """A sink, its outbox and the client behind it, who can be slow."""

    def __init__(self) -> None:
        self.is_ready = True
        self.taken: list[Delta] = []
        self.sent: list[list[Delta]] = []  # by flush
        self.stops: set[Callable[[Exception | None], None]] = set()
        self.error: Exception | None = None
        self.follow, self.leave = self.stops.add, self.stops.discard

    @property
    def outbox(self) -> Pipe:
        return self

    def take(self, deltas: Sequence[Delta]) -> None:
        if self.error is not None:
            raise self.error
        self.taken += deltas

    def flush(self) -> None:
        self.sent.append(self.taken)
        self.taken = []
        if not self.is_ready:
            for stop in tuple(self.stops):
                stop(None)


async def read(generation: Generation, pipe: Pipe) -> list[Delta]:
    """As a route reads: the first deltas, then pushed ones, and read ones again while the client is slow."""
    deltas: list[Delta] = []
    async for some in generation:
        deltas += some
        num_sent = len(pipe.sent)
        await generation.push(pipe)
        for sent in pipe.sent[num_sent:]:
            deltas += sent
    return deltas


def shape(deltas: Sequence[Delta], index: int = 0) -> tuple[str, list[int], FinishReason | None]:
    """One answer; there is no delta of it behind the one that ends it."""
    own = [delta for delta in deltas if delta.index == index]
    assert [delta.finish_reason for delta in own[:-1]] == [None] * (len(own) - 1)
    token_ids = [token_id for delta in own for token_id in delta.token_ids]
    return "".join(delta.text for delta in own), token_ids, own[-1].finish_reason


@settings(max_examples=25, deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=30),
    stop=st.sampled_from([[], ["END"], ["zz"]]),
    interval=st.sampled_from([1, 3]),
    n=st.sampled_from([1, 3]),
)
def test_pushed_and_read_deltas_are_the_same_answers(
    turns: list[tuple[int, bool]], stop: list[str], interval: int, n: int
) -> None:
    def respond(_prompt: Sequence[int], params: SamplingParams) -> list[int]:
        return list(TEXT[params.seed or 0 :].encode())  # so that answers differ and end one after the other

    async def answer() -> None:
        body: dict[str, Any] = {
            "prompt": "x", "max_tokens": 200, "stop": stop, "stream_interval": interval, "n": n, "seed": 0
        }  # fmt: skip
        engine = FakeEngineClient(respond=respond, is_manual=True)
        generation = await submit(engine, **body)
        pipe = Pipe()
        reading = asyncio.create_task(read(generation, pipe))
        for size, is_ready in turns:
            pipe.is_ready = is_ready
            engine.step(size)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        pipe.is_ready = True
        for _ in range(2 * len(TEXT) + 10):
            engine.step()
            await asyncio.sleep(0)
        assert reading.done()
        deltas = reading.result()
        whole = FakeEngineClient(respond=respond)
        reference = [delta async for some in await submit(whole, **body) for delta in some]
        answers = [shape(deltas, index) for index in range(n)]
        assert answers == [shape(reference, index) for index in range(n)]
        assert generation.usage.num_completion_tokens == sum(len(token_ids) for _, token_ids, _ in answers)
        assert pipe.stops == set()
        assert engine.running == {}
        whole.shutdown()

    asyncio.run(answer())


async def begin(engine: FakeEngineClient, pipe: Pipe) -> tuple[Generation, asyncio.Task[None]]:
    """A generation whose first delta is read and whose next ones are pushed."""
    generation = await submit(engine, prompt="abcdefgh", max_tokens=100)
    engine.step()
    await generation.__anext__()
    pushing = asyncio.create_task(generation.push(pipe))
    await eventually(lambda: bool(pipe.stops))
    return generation, pushing


async def test_each_step_has_its_delta_and_waiting_steps_leave_together() -> None:
    engine, pipe = FakeEngineClient(is_manual=True), Pipe()
    generation, pushing = await begin(engine, pipe)
    engine.step()
    assert pipe.sent == [[Delta(0, "b", [98], None)]]  # within the step: no task had a turn
    engine.step(2)
    assert [delta.text for delta in pipe.sent[1]] == ["c", "d"]
    generation.abort()
    await asyncio.wait_for(pushing, PATIENCE_S)
    assert pipe.sent[-1] == [Delta(0, "", [], FinishReason.ABORT)]
    assert [some async for some in generation] == []


@pytest.mark.parametrize("fault", ["sink", "engine", "dead end"])
async def test_errors_are_raised_where_somebody_waits(fault: str) -> None:
    engine, pipe = FakeEngineClient(is_manual=True), Pipe()
    generation, pushing = await begin(engine, pipe)
    if fault == "sink":
        pipe.error = ConnectionResetError("gone")
        engine.step()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(pushing, PATIENCE_S)
        await generation.aclose()
        assert engine.aborted
        return
    if fault == "engine":
        engine.fail("out of order")
    else:
        engine.submitted[0].meet_dead_end("out of order")
    with pytest.raises(EngineError, match="out of order"):
        await asyncio.wait_for(pushing, PATIENCE_S)
    assert [some async for some in generation] == []


async def test_whoever_keeps_a_record_is_told_of_every_token() -> None:
    class Record(GenerationObserver):
        def __init__(self) -> None:
            self.token_ids: list[int] = []

        def tokens(
            self, sequence: OutputSequence, token_ids: Sequence[int], deltas: Sequence[Delta], now: float
        ) -> None:
            self.token_ids += token_ids

    engine, record = FakeEngineClient(is_manual=True), Record()
    generation = await submit(engine, prompt="abc", observers=(record,))
    engine.step()
    reading = asyncio.create_task(read(generation, Pipe()))
    while not reading.done():
        await asyncio.sleep(0)
        engine.step()
    assert record.token_ids == [*b"abc", EOS]


async def test_whoever_is_cancelled_leaves_the_stream_to_a_reader() -> None:
    engine, pipe = FakeEngineClient(is_manual=True), Pipe()
    generation, pushing = await begin(engine, pipe)
    pushing.cancel()
    await asyncio.gather(pushing, return_exceptions=True)
    engine.step(2)
    assert pipe.sent == []
    assert [delta.text for delta in await generation.__anext__()] == ["bc"]
    await generation.aclose()


async def test_the_answers_of_a_step_leave_together_until_the_last_has_ended() -> None:
    engine, pipe = FakeEngineClient(respond=lambda *_: list(b"abcdef"), is_manual=True), Pipe()
    generation = await submit(engine, prompt="x", n=2)
    engine.step()
    assert [delta.text for delta in await generation.__anext__()] == ["a", "a"]
    pushing = asyncio.create_task(generation.push(pipe))
    await eventually(lambda: bool(pipe.stops))
    engine.step()
    assert [[(delta.index, delta.text) for delta in sent] for sent in pipe.sent] == [[(0, "b"), (1, "b")]]
    engine.submitted[0].finish(FinishReason.LENGTH)
    engine.step()
    assert [(delta.index, delta.text) for delta in pipe.sent[-1]] == [(1, "c")]
    assert not pushing.done()
    engine.step(4)
    await asyncio.wait_for(pushing, PATIENCE_S)
    assert generation.finish_reasons == [FinishReason.LENGTH, FinishReason.STOP]
    assert [some async for some in generation] == []


async def test_answers_that_have_not_all_begun_and_slow_clients_are_read() -> None:
    engine, pipe = FakeEngineClient(is_manual=True), Pipe()
    several = await submit(engine, prompt="ab", n=2)
    engine.submitted[0].step()
    assert [delta.text for delta in await several.__anext__()] == ["a"]
    await asyncio.wait_for(several.push(pipe), PATIENCE_S)
    pipe.is_ready = False
    single = await submit(engine, prompt="ab")
    engine.submitted[2].step()
    await single.__anext__()
    await asyncio.wait_for(single.push(pipe), PATIENCE_S)
    assert pipe.stops == set()
    for generation in (several, single):
        await generation.aclose()
