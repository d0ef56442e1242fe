"""The asyncio side of the engine, on the fake device and a real thread."""

import asyncio
import dataclasses
import gc
import threading
import time

import numpy as np
import pytest

from engine import request_limits
from engine.client import EngineClient
from engine.interface.config import EngineConfig, ModelInfo
from engine.interface.types import (
    EngineError,
    EngineStalled,
    EngineStats,
    FinishReason,
    HostLost,
    PictureInput,
    PromptPicture,
    QueueFull,
)
from engine.loop import EngineLoop
from engine.request_timeouts import RequestTimeouts
from engine.schedule.request import Request
from sampling.host.params import InvalidParameter, SamplingParams
from tests.fakes.runner import VOCAB_SIZE, expected_output
from tests.fakes.script import World
from tests.patience import PATIENCE_S


class FakeEngine:
    """What the client needs of an Engine, over the fake device.

    While `gate` is closed, no step finishes; while `exit_gate` is closed, a failed engine thread does not end.
    """

    def __init__(self, **config):
        self.world = World(num_slots=2, num_pages=100, max_model_len=60)
        self.scheduler = self.world.scheduler
        self.config = EngineConfig(**config)
        self.model_info = ModelInfo(
            "fake", VOCAB_SIZE, self.world.max_model_len, "float32", 0, "cpu", "xla", "xla", "a fake"
        )
        self.gate = threading.Event()
        self.exit_gate = threading.Event()
        for gate in (self.gate, self.exit_gate):
            gate.set()
        self.error = None
        result = self.world.runner.result

        def gated(pending):
            assert self.gate.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
            return result(pending)

        self.world.runner.result = gated

    def make_loop(self, publish, on_failure):
        def fail(error):
            on_failure(error)
            assert self.exit_gate.wait(PATIENCE_S)

        runner, timeline = self.world.runner, self.world.timeline
        return EngineLoop(self.scheduler, runner, publish, fail, overlap=self.config.overlap, timeline=timeline)

    def stats(self):
        return EngineStats(num_running=self.scheduler.num_running, num_waiting=self.scheduler.num_waiting)

    def watch_hosts(self, on_lost):
        self.lose_host = on_lost

    def close(self, *, store_seconds=0.0, failure=""):
        self.failure = failure


@pytest.fixture
async def make_client():
    clients = []

    def make(**config):
        engine = FakeEngine(**config)
        client = EngineClient(engine)
        client.start(asyncio.get_running_loop())
        clients.append((client, engine))
        return client, engine

    yield make
    for client, engine in clients:
        engine.gate.set()
        client.shutdown()
        engine.world.pool.check()
        if engine.error is None:
            assert engine.world.pool.num_active == 0


def greedy(max_tokens, **params):
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **params)


async def read(stream):
    token_ids, events = [], 0
    async for event in stream:
        token_ids += event.token_ids
        events += 1
        last = event
    return token_ids, last.finish_reason, events


async def test_streams_deliver_what_the_model_says(make_client):
    client, _ = make_client()
    prompts = [[i + 1, 5] for i in range(9)]
    answers = await asyncio.gather(*(read(client.submit(prompt, greedy(8))) for prompt in prompts))
    for prompt, (token_ids, reason, _) in zip(prompts, answers, strict=True):
        assert token_ids == expected_output(prompt, 0, 10, ignore_eos=True)
        assert reason is FinishReason.LENGTH
    assert client.is_alive


async def test_the_trace_has_every_step(make_client):
    client, _ = make_client()
    assert not [event for event in client.trace() if event["name"] == "step"]
    await read(client.submit([1, 2, 3], greedy(5)))
    steps = [event["args"] for event in client.trace() if event["name"] == "step"]
    assert [(args["step"], args["rows"], args["tokens"]) for args in steps[:4]] == [
        (0, 1, 3), (1, 1, 1), (2, 1, 1), (3, 1, 1)
    ]  # fmt: skip
    assert len([event for event in client.trace(num_steps=2) if event["name"] == "step"]) == 2


async def test_a_slow_reader_gets_merged_events_and_loses_nothing(make_client):
    client, engine = make_client()
    slow = client.submit([3], greedy(20))
    token_ids, _, _ = await read(client.submit([4], greedy(20)))
    assert token_ids == expected_output([4], 0, 21, ignore_eos=True)
    while engine.scheduler.has_work:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    token_ids, reason, events = await read(slow)
    assert (token_ids, reason) == (expected_output([3], 0, 21, ignore_eos=True), FinishReason.LENGTH)
    assert events <= 2


async def test_the_asyncio_loop_is_woken_once_for_each_step(make_client, monkeypatch):
    client, engine = make_client()
    loop, wake_ups = asyncio.get_running_loop(), []
    call_soon_threadsafe = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (wake_ups.append(1), call_soon_threadsafe(*args)))
    await asyncio.gather(*(read(client.submit([i + 1], greedy(6))) for i in range(2)))
    assert len(wake_ups) <= engine.world.runner.num_steps


async def test_abort_ends_the_stream_with_one_event(make_client):
    client, engine = make_client()
    engine.gate.clear()
    running, waiting = [client.submit([i + 1], greedy(50)) for i in range(2)], client.submit([7], greedy(50))
    for stream in (*running, waiting, waiting):
        stream.abort()
    engine.gate.set()
    for stream in (*running, waiting):
        _, reason, _ = await read(stream)
        assert reason is FinishReason.ABORT
        stream.abort()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@pytest.mark.parametrize(
    ("prompt", "params", "param", "words"),
    [
        ([], greedy(1), "prompt", "the prompt is empty"),
        ([VOCAB_SIZE], greedy(1), "prompt", f"token id {VOCAB_SIZE}; token ids must be from 0 to {VOCAB_SIZE - 1}"),
        ([-1], greedy(1), "prompt", "token id -1"),
        (
            [1] * 60,
            greedy(1),
            "prompt",
            "However, the prompt has 60 tokens",
        ),
        ([1] * 50, greedy(11), "max_tokens", "max_tokens is 11 and the prompt has 50 tokens"),
        ([1], greedy(1, stop_token_ids=(VOCAB_SIZE,)), "stop_token_ids", f"stop_token_ids has {VOCAB_SIZE}"),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_at_submit(make_client, prompt, params, param, words):
    client, _ = make_client()
    with pytest.raises(InvalidParameter, match=words) as caught:
        client.submit(prompt, params)
    assert caught.value.param == param


async def test_a_length_is_refused_by_the_callers_name_for_it(make_client):
    client, _ = make_client()
    with pytest.raises(InvalidParameter, match="max_new is 11 and the prompt has 50 tokens") as caught:
        client.check_prompt([1] * 50, 11, "max_new")
    assert caught.value.param == "max_new"


async def test_what_has_been_checked_is_taken_as_it_is(make_client):
    client, _ = make_client()
    client.check_prompt([1, 2, 3], 5)
    token_ids, reason, _ = await read(client.submit([1, 2, 3], greedy(5), is_checked=True))
    assert (len(token_ids), reason) == (5, FinishReason.LENGTH)


async def test_the_longest_request_fits(make_client):
    client, _ = make_client()
    token_ids, reason, _ = await read(client.submit([1] * 50, greedy(10)))
    assert (len(token_ids), reason) == (10, FinishReason.LENGTH)


async def test_an_id_is_in_use_until_its_request_has_ended(make_client):
    client, engine = make_client()
    engine.gate.clear()
    stream = client.submit([1], greedy(3), request_id="mine")
    with pytest.raises(InvalidParameter, match="'mine' is in use"):
        client.submit([2], greedy(3), request_id="mine")
    engine.gate.set()
    await read(stream)
    assert (await read(client.submit([2], greedy(3), request_id="mine")))[1] is FinishReason.LENGTH


async def test_the_queue_is_bounded_in_requests_and_in_prompt_tokens(make_client):
    client, engine = make_client(max_num_queued_requests=3, max_num_queued_tokens=20)
    engine.gate.clear()
    streams = [client.submit([1], greedy(2)) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        while engine.scheduler.num_running < 2:
            await asyncio.sleep(0.001)
    streams += [client.submit([1] * 9, greedy(2)) for _ in range(2)]
    with pytest.raises(QueueFull, match="18 prompt tokens are queued and this prompt has 3; the limit is 20"):
        client.submit([1] * 3, greedy(2))
    assert client.stats().num_waiting_tokens == 18
    streams.append(client.submit([1], greedy(2)))
    with pytest.raises(QueueFull, match="3 requests are queued; the limit is 3"):
        client.submit([1], greedy(2))
    streams[-1].abort()
    engine.gate.set()
    reasons = [(await read(stream))[1] for stream in streams]
    assert reasons == [FinishReason.LENGTH] * 4 + [FinishReason.ABORT]
    await read(client.submit([1], greedy(2)))


async def test_the_queue_is_bounded_in_the_pixels_of_pictures(make_client, monkeypatch):
    monkeypatch.setattr(request_limits, "MAX_QUEUED_PICTURE_BYTES", 3 << 20)
    client, engine = make_client()
    client.model_info = dataclasses.replace(client.model_info, pictures=PictureInput(1, 1, 1, 8, max_tokens=1))
    with pytest.raises(InvalidParameter, match="a picture has 2 tokens; the limit is 1"):
        client.submit([1, 2], greedy(2), pictures=[PromptPicture(0, 2, b"digest", np.zeros((2,), np.uint8))])
    shaped = PictureInput(0, 0, 1, 8, max_tokens=2, pixels_shape=(8, 3))
    client.model_info = dataclasses.replace(client.model_info, pictures=shaped)
    for shape in ((2, 3), (4, 2), (8, 3)):  # and not (4, 3): too few patches, larger ones, those of two tokens
        with pytest.raises(InvalidParameter, match="the encoder takes no pixels of shape"):
            client.submit([1, 2], greedy(2), pictures=[PromptPicture(0, 1, b"digest", np.zeros(shape, np.uint8))])
    framed = shaped._replace(pixels_shape=(8, 2, 3), num_frames=2)  # a still picture lacks the axis of frames
    client.model_info = dataclasses.replace(client.model_info, pictures=framed)
    for shape in ((4, 1, 3), (4, 2), (8, 2, 3)):
        with pytest.raises(InvalidParameter, match="the encoder takes no pixels of shape"):
            client.submit([1, 2], greedy(2), pictures=[PromptPicture(0, 1, b"digest", np.zeros(shape, np.uint8))])
    for shape in ((4, 2, 3), (4, 3)):
        client.submit([1, 2], greedy(2), pictures=[PromptPicture(0, 1, b"digest", np.zeros(shape, np.uint8))]).abort()
    await read(client.submit([1], greedy(2)))  # behind it, no step of these waits at the gate
    client.model_info = dataclasses.replace(client.model_info, pictures=PictureInput(1, 1, 1, 8, max_tokens=1))
    engine.gate.clear()
    streams = [client.submit([1], greedy(2)) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        while engine.scheduler.num_running < 2:
            await asyncio.sleep(0.001)
    pictures = [PromptPicture(0, 1, b"digest", np.zeros((2 << 20,), np.uint8))]
    streams.append(client.submit([1, 2], greedy(2), pictures=pictures))
    with pytest.raises(QueueFull, match="of 2 MiB are queued and this prompt has 2 MiB; the limit is 3"):
        client.submit([1, 2], greedy(2), pictures=pictures)
    streams.append(client.submit([1, 2], greedy(2)))  # a text has room
    streams[2].abort()
    engine.gate.set()
    for stream in streams:
        await read(stream)
    engine.gate.clear()
    again = client.submit([1, 2], greedy(2), pictures=pictures)
    again.abort()
    engine.gate.set()
    await read(again)


async def test_a_client_whose_other_hosts_have_been_let_go_leaves_no_thread_behind():
    engine = FakeEngine()

    def refuse(on_lost):
        raise EngineError("the other hosts have been let go")

    engine.watch_hosts = refuse
    client = EngineClient(engine)
    with pytest.raises(EngineError, match="have been let go"):
        client.start(asyncio.get_running_loop())
    assert not client.is_alive
    client.shutdown()


async def test_a_failure_ends_every_stream_with_one_error_and_closes_the_client(make_client):
    client, engine = make_client()
    engine.gate.clear()
    streams = [client.submit([i + 1], greedy(9)) for i in range(4)]
    engine.error = RuntimeError("the device is gone")
    engine.gate.set()
    for stream in streams:
        event = await anext(stream)
        assert (event.finish_reason, event.token_ids) == (FinishReason.ERROR, [])
        assert event.error == "the engine failed: RuntimeError: the device is gone"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    with pytest.raises(RuntimeError, match="the device is gone"):
        await client.failure
    assert not client.is_alive
    with pytest.raises(EngineError, match="not running"):
        client.submit([1], greedy(1))


async def test_calls_to_a_failed_engine_are_refused_before_its_thread_has_ended(make_client):
    client, engine = make_client()
    engine.exit_gate.clear()
    engine.error = RuntimeError("the device is gone")
    client.submit([1], greedy(3))
    with pytest.raises(RuntimeError, match="the device is gone"):
        await client.failure
    try:
        with pytest.raises(EngineError, match="not running"):
            await asyncio.wait_for(client.lifecycle.pause(), PATIENCE_S)
    finally:
        engine.exit_gate.set()


async def test_shutdown_ends_running_requests_and_can_be_repeated(make_client):
    client, engine = make_client()
    engine.gate.clear()
    stream = client.submit([1], greedy(50))
    engine.gate.set()
    client.shutdown()
    client.shutdown()
    assert (await read(stream))[1] is FinishReason.ABORT
    with pytest.raises(EngineError, match="not running"):
        client.submit([1], greedy(1))


async def test_a_shutdown_in_the_background_lets_the_loop_turn_while_a_step_hangs(make_client):
    client, engine = make_client()
    engine.gate.clear()
    stream = client.submit([1], greedy(50))
    while not engine.scheduler.num_begun:
        await asyncio.sleep(0.001)
    ending = asyncio.create_task(client.shutdown_in_background())
    await asyncio.sleep(0.05)
    assert not ending.done()
    assert not client.is_alive
    engine.gate.set()
    async with asyncio.timeout(PATIENCE_S):
        await ending
        assert (await read(stream))[1] is FinishReason.ABORT
    assert client.failure.cancelled()
    await client.shutdown_in_background()
    client.shutdown()


async def test_requests_without_a_seed_differ_and_a_configured_seed_repeats_them(make_client):
    wish = SamplingParams(max_tokens=20, temperature=1.0, ignore_eos=True)

    async def answers(**config):
        client, _ = make_client(**config)
        return [(await read(client.submit([1, 2], wish)))[0] for _ in range(2)]

    first, second = await answers(seed=7), await answers(seed=7)
    assert first == second
    assert first[0] != first[1]
    assert await answers() != first


# ---------------------------------------------------------------- an engine that hangs


class Panic(BaseException):
    """No Exception, as the panics of libraries written in Rust are none."""


async def test_a_panic_in_the_engine_thread_reaches_every_stream(make_client):
    client, engine = make_client()
    engine.error = Panic("index out of bounds")
    streams = [client.submit([i + 1], greedy(5)) for i in range(3)]
    for stream in streams:
        events = [event async for event in stream]
        assert events[-1].finish_reason is FinishReason.ERROR
        assert "index out of bounds" in events[-1].error
    assert not client.is_alive
    assert isinstance(client.failure.exception(), Panic)


async def test_a_step_that_hangs_ends_every_stream_with_one_error(make_client):
    client, engine = make_client(stall_timeout=0.3)
    engine.gate.clear()
    streams = [client.submit([i + 1], greedy(5)) for i in range(4)]
    for stream in streams:
        events = [event async for event in stream]
        assert [event.finish_reason for event in events] == [FinishReason.ERROR]
        assert "0.3 s" in events[0].error
    assert not client.is_alive
    assert isinstance(client.failure.exception(), EngineStalled)
    with pytest.raises(EngineError):
        client.submit([1], greedy(1))
    engine.error = RuntimeError("what a step that comes back does counts for nothing")


async def test_a_lost_host_ends_every_stream_although_the_step_hangs(make_client):
    client, engine = make_client()
    engine.gate.clear()
    streams = [client.submit([i + 1], greedy(9)) for i in range(3)]
    threading.Thread(target=engine.lose_host, args=(HostLost("host 1 of 2 is lost"),)).start()
    for stream in streams:
        assert (await anext(stream)).error == "the engine failed: HostLost: host 1 of 2 is lost"
    assert isinstance(client.failure.exception(), HostLost)
    assert engine.failure == "HostLost: host 1 of 2 is lost", "the other hosts are told"
    engine.error = RuntimeError("what a step that comes back does counts for nothing")
    engine.gate.set()


async def test_a_deadline_holds_although_the_step_hangs(make_client):
    client, engine = make_client()
    engine.gate.clear()
    hurried, patient = client.submit([1], greedy(5), timeout=0.05), client.submit([2], greedy(5))
    assert (await read(hurried))[1] is FinishReason.TIMEOUT
    engine.gate.set()
    token_ids, reason, _ = await read(patient)
    assert (token_ids, reason) == (expected_output([2], 0, 6, ignore_eos=True), FinishReason.LENGTH)
    assert client.is_alive


async def test_a_queued_request_is_told_in_time_although_the_step_hangs(make_client):
    client, engine = make_client()
    engine.gate.clear()  # closed first, or the requests could end before both are seen running
    running = [client.submit([i + 1], greedy(5)) for i in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        while engine.scheduler.num_running < 2:
            await asyncio.sleep(0.001)
    client._timeouts = RequestTimeouts(EngineConfig(queue_timeout=0.05))  # which those above might not have met
    queued = client.submit([9], greedy(5))
    assert (await read(queued))[1] is FinishReason.TIMEOUT
    engine.gate.set()
    assert [(await read(stream))[1] for stream in running] == [FinishReason.LENGTH] * 2


async def test_a_shutdown_waits_no_longer_than_it_is_told_while_a_step_hangs(make_client):
    client, engine = make_client()
    engine.gate.clear()
    stream = client.submit([1], greedy(50))
    async with asyncio.timeout(PATIENCE_S):
        while not engine.scheduler.num_begun:
            await asyncio.sleep(0.001)
    started = time.monotonic()
    client.shutdown(0.2)
    assert 0.1 < time.monotonic() - started < PATIENCE_S / 2  # the step hangs for all of it
    assert (await asyncio.wait_for(read(stream), PATIENCE_S))[1] is FinishReason.ABORT
    engine.gate.set()  # so that the thread ends after all
    async with asyncio.timeout(PATIENCE_S):
        while engine.world.pool.num_active:
            await asyncio.sleep(0.01)


async def test_all_streams_can_be_ended_while_a_step_hangs(make_client):
    client, engine = make_client()
    engine.gate.clear()
    streams = [client.submit([i + 1], greedy(5)) for i in range(4)]
    client.end_streams()
    assert [(await read(stream))[1] for stream in streams] == [FinishReason.ABORT] * 4
    engine.gate.set()
    while engine.scheduler.has_work:
        await asyncio.sleep(0.001)
    assert (await read(client.submit([3], greedy(2))))[0] == expected_output([3], 0, 3, ignore_eos=True)


async def test_a_request_that_is_over_needs_no_garbage_collection(make_client):
    """It holds all its tokens, and a server's collector runs seldom."""
    client, _ = make_client()
    gc.collect()
    gc.disable()
    gc.freeze()  # what other tests have left is millions of objects, among which a request would be long looked for
    try:
        for _ in range(3):
            await read(client.submit([1, 2, 3], greedy(4)))
        async with asyncio.timeout(PATIENCE_S):  # the engine thread lets go of a request at its next turn
            while sum(isinstance(kept, Request) for kept in gc.get_objects()) > 1:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
