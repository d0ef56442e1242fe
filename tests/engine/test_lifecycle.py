"""Requests before, during and after each call of the lifecycle, on the real model."""

import asyncio
import contextlib
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from cache.storage import PAGE_SIZE_BY_BACKEND
from engine.client import EngineClient
from engine.engine import Engine
from engine.interface.background import is_narrow_here
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.interface.errors import ModelError
from engine.interface.types import EngineBusy, EngineError, EngineState, FinishReason
from engine.step import device_arrays
from engine.step.page_memory import PageMemory
from sampling.host.params import SamplingParams
from server.startup.progress import silent
from tests.gguf_tensors import write_random_model
from tests.patience import PATIENCE_S

GOLDENS = json.loads((Path(__file__).parents[1] / "golden" / "smollm2_greedy.json").read_text())["prompts"]
STORY = next(golden for golden in GOLDENS if golden["name"] == "story")
FACT = next(golden for golden in GOLDENS if golden["name"] == "fact")
LONG = next(golden for golden in GOLDENS if golden["name"] == "long")
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def expected(real_engine):
    """The tokens of the engine without any call of the lifecycle."""

    async def outputs():
        client = EngineClient(real_engine)
        client.start(asyncio.get_running_loop())
        try:
            return {golden["name"]: (await read(submit(client, golden, 64)))[0] for golden in (STORY, FACT, LONG)}
        finally:
            client.shutdown()

    undisturbed = asyncio.run(outputs())
    return lambda golden, num_tokens=NUM_TOKENS: undisturbed[golden["name"]][:num_tokens]


@pytest.fixture
async def client(real_engine):
    real_engine.pool.reset_prefix_cache()
    client = EngineClient(real_engine)
    client.start(asyncio.get_running_loop())
    yield client
    client.shutdown()
    real_engine.pool.check()
    assert real_engine.pool.num_active == 0
    assert real_engine.stats().compiles_after_ready == 0


def submit(client, golden, num_tokens=NUM_TOKENS, **options):
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    return client.submit(golden["prompt_token_ids"], params, **options)


async def read(stream):
    token_ids = []
    async for event in stream:
        token_ids += event.token_ids
    return token_ids, event.finish_reason


async def begin(client, golden):
    """Starts a request; returns its stream and its first tokens."""
    stream = submit(client, golden)
    event = await anext(stream)
    return stream, event.token_ids


async def test_a_paused_engine_keeps_everything_and_goes_on(client, expected):
    stream, first = await begin(client, STORY)
    await client.lifecycle.pause()
    await client.lifecycle.pause()
    assert client.lifecycle.state is EngineState.PAUSED
    steps = client.stats().num_steps
    waiting = submit(client, FACT)
    await asyncio.sleep(0.05)
    assert client.stats().num_steps == steps
    assert client.is_alive
    await client.lifecycle.resume()
    assert first + (await read(stream))[0] == expected(STORY)
    assert (await read(waiting))[0] == expected(FACT)


async def test_an_abort_during_a_pause_takes_effect(client, expected):
    stream, first = await begin(client, STORY)
    await client.lifecycle.pause()
    assert client.abort(stream.request_id)
    token_ids, reason = await asyncio.wait_for(read(stream), PATIENCE_S)
    assert reason is FinishReason.ABORT
    assert first + token_ids == expected(STORY)[: len(first + token_ids)]
    assert not client.abort(stream.request_id)
    await client.lifecycle.resume()
    assert (await read(submit(client, FACT)))[0] == expected(FACT)


async def test_memory_is_asked_for_ahead_of_requests_and_again_after_sleep(real_engine, client, expected, monkeypatch):
    told = []

    class Memory(PageMemory):
        def reach(self, num_pages):
            told.append((self, num_pages))
            super().reach(num_pages)

    def reached():
        return [num_pages for memory, num_pages in told if memory is told[-1][0]]

    monkeypatch.setattr(device_arrays, "PageMemory", Memory)
    for _ in range(2):
        await client.lifecycle.sleep()
        await client.lifecycle.wake()
        assert reached() == [0]
        assert (await read(submit(client, LONG)))[0] == expected(LONG)
        num_pages = 1 + -(-(len(LONG["prompt_token_ids"]) + NUM_TOKENS) // PAGE_SIZE_BY_BACKEND["cpu"])
        assert reached()[-1] in (num_pages - 1, num_pages)  # the null page is one, and the last token may need none
        assert reached() == sorted(set(reached()))
    assert len({memory for memory, _ in told}) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked for memory ahead")
async def test_the_thread_of_the_pages_ends_with_the_client_and_begins_with_the_next(
    real_engine, expected, monkeypatch
):
    made = []

    class Memory(PageMemory):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    def threads():
        return [memory._thread for memory in made if memory._thread.is_alive()]

    monkeypatch.setattr(device_arrays, "PageMemory", Memory)
    real_engine.runner.close()
    for num_made in (1, 2):
        client = EngineClient(real_engine)
        client.start(asyncio.get_running_loop())
        try:
            assert len(made) == num_made
            assert threads() == [made[-1]._thread]
            assert (await read(submit(client, FACT)))[0] == expected(FACT)
        finally:
            client.shutdown()
        assert threads() == []


def device_bytes():
    return sum(array.nbytes for array in jax.live_arrays() if not array.is_deleted())


@pytest.mark.parametrize("drop_weights", [False, True])
async def test_sleep_gives_the_memory_back_and_wake_goes_on(client, drop_weights, expected, real_engine):
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(real_engine.runner.arrays.params))
    pages = sum(leaf.nbytes for leaf in jax.tree.leaves(real_engine.runner.arrays.kv))
    awake = device_bytes()
    assert awake >= weights + pages
    stream, first = await begin(client, STORY)
    await client.lifecycle.sleep(drop_weights=drop_weights)
    assert device_bytes() <= awake - pages - drop_weights * weights
    assert client.stats().num_active_pages == 0
    waiting = submit(client, FACT)
    with pytest.raises(EngineBusy, match="asleep"):
        await client.lifecycle.resume()
    with pytest.raises(EngineBusy, match="asleep"):
        await client.lifecycle.update_weights(Path("any"))
    await client.lifecycle.sleep()
    await client.lifecycle.wake()
    assert client.lifecycle.state is EngineState.RUNNING
    assert first + (await read(stream))[0] == expected(STORY)
    assert (await read(waiting))[0] == expected(FACT)
    await client.lifecycle.wake()
    assert device_bytes() >= weights + pages


async def test_a_sleep_that_nobody_wants_any_more_when_its_turn_comes_does_nothing(client, expected):
    found = []

    def is_wanted():
        found.append(client.lifecycle.state)
        return client.lifecycle.state is EngineState.RUNNING

    await asyncio.gather(client.lifecycle.pause(), client.lifecycle.sleep(is_wanted=is_wanted))
    assert found == [EngineState.PAUSED] == [client.lifecycle.state]
    await client.lifecycle.resume()
    await client.lifecycle.sleep(is_wanted=is_wanted)
    assert client.lifecycle.state is EngineState.ASLEEP
    await client.lifecycle.wake(is_wanted=lambda: False)
    assert client.lifecycle.state is EngineState.ASLEEP
    await client.lifecycle.wake(is_wanted=lambda: True)
    assert (await read(submit(client, FACT)))[0] == expected(FACT)


def resident_bytes():
    """Of this process; 0 where the system does not tell."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


async def test_forgotten_weights_are_read_again(client, expected, real_engine, monkeypatch, tmp_path):
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(real_engine.runner.arrays.params))
    awake = device_bytes()
    stream, first = await begin(client, STORY)
    sleeping = asyncio.create_task(client.lifecycle.sleep(forget_weights=True, drain=True))
    await asyncio.sleep(0)
    waiting = submit(client, FACT)
    assert first + (await read(stream))[0] == expected(STORY)  # what has begun comes to its end
    await sleeping
    assert (client.lifecycle.state, client.lifecycle.has_weights) == (EngineState.ASLEEP, False)
    assert device_bytes() <= awake - weights
    path = real_engine.model_path
    monkeypatch.setattr(real_engine, "model_path", tmp_path / "gone.gguf")
    with pytest.raises((ModelError, OSError)):
        await client.lifecycle.wake()
    assert client.lifecycle.state is EngineState.ASLEEP
    monkeypatch.setattr(real_engine, "model_path", path)
    await client.lifecycle.wake()
    assert (await read(waiting))[0] == expected(FACT)


async def test_a_wake_that_fails_lets_go_of_the_weights_that_it_has_read(client, expected, real_engine, monkeypatch):
    def failing(params):
        raise MemoryError("no room for the pages")

    await client.lifecycle.sleep(forget_weights=True)
    gc.collect()
    asleep = device_bytes()
    gc.disable()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(real_engine, "wake", failing)
            with contextlib.suppress(MemoryError):  # pytest would keep the error
                await client.lifecycle.wake()
        assert client.lifecycle.state is EngineState.ASLEEP
        given_up = time.monotonic() + PATIENCE_S  # the engine thread may still be inside of the call that failed
        while device_bytes() > asleep and time.monotonic() < given_up:
            await asyncio.sleep(0.01)
        assert device_bytes() <= asleep
    finally:
        gc.enable()
        await client.lifecycle.wake()
    assert (await read(submit(client, FACT)))[0] == expected(FACT)


async def test_forgotten_weights_that_cannot_be_read_are_found_before_the_wake(
    client, expected, real_engine, monkeypatch, tmp_path
):
    cut = tmp_path / real_engine.model_path.name
    with real_engine.model_path.open("rb") as whole:
        cut.write_bytes(whole.read(1 << 20))
    with monkeypatch.context() as patched:
        patched.setattr(real_engine, "model_path", cut)
        await client.lifecycle.check_weights()  # they are in memory
        await client.lifecycle.sleep(forget_weights=True)
        with pytest.raises(ModelError, match=cut.name):
            await client.lifecycle.check_weights()
    await client.lifecycle.check_weights()
    assert (client.lifecycle.state, client.lifecycle.has_weights) == (EngineState.ASLEEP, False)
    await client.lifecycle.wake()
    assert (await read(submit(client, FACT)))[0] == expected(FACT)


@pytest.mark.parametrize("forget_weights", [False, True])
@pytest.mark.parametrize("lacking", ["pages", "thread", "weights"])
async def test_a_wake_that_fails_half_way_leaves_the_engine_asleep_as_it_was(
    client, expected, real_engine, monkeypatch, forget_weights, lacking
):
    """Weights that stayed made the model count as one in memory, which nobody wakes."""

    def failing(*_, **__):
        raise MemoryError(f"no room for the {lacking}")

    made = []

    class Memory(PageMemory):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    placement = real_engine.runner.arrays.placement
    await client.lifecycle.sleep(forget_weights=forget_weights)
    gc.collect()
    asleep = device_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(device_arrays, "PageMemory", failing if lacking == "thread" else Memory)
        if lacking != "thread":
            patched.setattr(placement, "allocate" if lacking == "pages" else "put_params", failing)
        with pytest.raises(MemoryError, match=f"no room for the {lacking}"):
            await client.lifecycle.wake()
    assert (client.lifecycle.state, client.lifecycle.has_weights) == (EngineState.ASLEEP, not forget_weights)
    assert device_bytes() <= asleep
    assert len(made) == (lacking == "weights")
    assert not any(memory._thread is not None and memory._thread.is_alive() for memory in made)
    await client.lifecycle.wake()
    assert (await read(submit(client, FACT)))[0] == expected(FACT)


async def test_the_system_has_the_memory_of_forgotten_weights_again(client, real_engine):
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(real_engine.runner.arrays.params))
    gc.collect()  # what other tests of this process left must not be freed in between
    resident = resident_bytes()
    await client.lifecycle.sleep(forget_weights=True)
    for _ in range(600):  # some systems count what was given back a little later
        if resident_bytes() <= resident - 0.8 * weights:
            break
        await asyncio.sleep(0.1)
    assert resident == 0 or resident_bytes() <= resident - 0.8 * weights
    await client.lifecycle.wake()


async def test_a_cancelled_wait_for_the_end_of_requests_changes_nothing(client, expected):
    stream, first = await begin(client, STORY)
    sleeping = asyncio.create_task(client.lifecycle.sleep(forget_weights=True, drain=True))
    await asyncio.sleep(0)
    waiting = submit(client, FACT)
    sleeping.cancel()
    await asyncio.wait((sleeping,))
    await client.lifecycle.settle()
    assert client.lifecycle.has_weights
    assert (await read(waiting))[0] == expected(FACT)
    assert first + (await read(stream))[0] == expected(STORY)


async def test_a_cancelled_call_of_sleep_still_sleeps(client, real_engine, monkeypatch, expected):
    begun, may_go_on, sleep = threading.Event(), threading.Event(), real_engine.sleep

    def slow(**options):
        begun.set()
        assert may_go_on.wait(PATIENCE_S)
        sleep(**options)

    monkeypatch.setattr(real_engine, "sleep", slow)
    asked = asyncio.create_task(client.lifecycle.sleep())
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    asked.cancel()
    await asyncio.wait((asked,))
    resumed = asyncio.create_task(client.lifecycle.resume())
    may_go_on.set()
    with pytest.raises(EngineBusy, match="asleep"):
        await resumed
    await client.lifecycle.wake()
    assert (await read(submit(client, FACT)))[0] == expected(FACT)


async def test_a_sleep_that_fails_half_way_can_be_woken_from(client, real_engine, monkeypatch, expected):
    sleep = real_engine.runner.sleep

    def failing(**options):
        sleep(**options)
        raise MemoryError("no room for the weights")

    monkeypatch.setattr(real_engine.runner, "sleep", failing)
    stream, first = await begin(client, STORY)
    with pytest.raises(MemoryError, match="no room"):
        await client.lifecycle.sleep()
    assert client.lifecycle.state is EngineState.ASLEEP
    await client.lifecycle.wake()
    assert first + (await read(stream))[0] == expected(STORY)


async def test_requests_that_waited_for_new_weights_begin_at_once(
    client, real_engine, model_path, monkeypatch, expected
):
    monkeypatch.setattr("engine.loop.IDLE_TURN_SECONDS", 10 * PATIENCE_S)  # longer than the test waits
    run = client.lifecycle._run

    async def late(function):
        result = await run(function)
        await asyncio.sleep(0.1)  # long enough for the engine thread to become idle
        return result

    monkeypatch.setattr(client.lifecycle, "_run", late)
    stream, _ = await begin(client, STORY)
    update = asyncio.create_task(client.lifecycle.update_weights(model_path, drain=True))
    while real_engine.scheduler.is_admitting:
        await asyncio.sleep(0)
    waiting = submit(client, FACT)
    await read(stream)
    await update
    token_ids, _ = await asyncio.wait_for(read(waiting), PATIENCE_S)
    assert token_ids == expected(FACT)


async def test_the_prefix_cache_is_reset_only_while_nobody_holds_a_page(client, expected):
    assert (await read(submit(client, LONG, 2)))[0] == expected(LONG, 2)
    stream, _ = await begin(client, STORY)
    assert not await client.lifecycle.reset_prefix_cache()
    await read(stream)
    assert client.stats().num_cached_pages > 0
    assert await client.lifecycle.reset_prefix_cache()
    assert client.stats().num_cached_pages == 0
    event = await anext(submit(client, LONG, 1))
    assert (event.num_cached_tokens, event.token_ids) == (0, expected(LONG, 1))


async def test_weights_are_replaced_between_requests(client, model_path, tmp_path, expected):
    stream, first = await begin(client, STORY)
    with pytest.raises(EngineBusy, match="1 requests have begun"):
        await client.lifecycle.update_weights(model_path)
    update = asyncio.create_task(client.lifecycle.update_weights(model_path, drain=True))
    await asyncio.sleep(0)
    assert first + (await read(stream))[0] == expected(STORY)
    await update
    assert client.stats().num_cached_pages == 0
    assert (await read(submit(client, FACT)))[0] == expected(FACT)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelError):
        await client.lifecycle.update_weights(broken)
    assert (await read(submit(client, FACT)))[0] == expected(FACT)


async def test_requests_after_an_update_use_the_new_weights(client, real_engine, model_path, expected, monkeypatch):
    params = real_engine.runner.arrays.params
    # All logits are 0, so token 0 is sampled. The array is made on the host, because the device would compile.
    silent = params | {"output_norm": jax.device_put(np.zeros(params["output_norm"].shape, np.float32))}
    monkeypatch.setattr(real_engine, "read_weights", lambda path: silent)
    await client.lifecycle.update_weights(model_path)
    assert (await read(submit(client, FACT)))[0] == [0] * NUM_TOKENS
    monkeypatch.setattr(real_engine, "read_weights", lambda path: params)
    await client.lifecycle.update_weights(model_path)
    assert (await read(submit(client, FACT)))[0] == expected(FACT)


@pytest.mark.usefixtures("native")
async def test_weights_of_other_formats_do_not_fit_the_programs(tmp_path):
    first = write_random_model(tmp_path / "first.gguf", lambda name: Kind.Q4_1)
    other = write_random_model(tmp_path / "other.gguf", lambda name: Kind.Q8_0, seed=1)
    same = write_random_model(tmp_path / "same.gguf", lambda name: Kind.Q4_1, seed=2)
    config = EngineConfig(max_num_seqs=1, max_num_batched_tokens=1 + TILE_SIZE, num_pages=20)
    client = EngineClient(engine := Engine.load(first, config, silent))
    client.start(asyncio.get_running_loop())
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    before = await read(client.submit([1, 2, 3], params))
    with pytest.raises(ModelError, match=r"other\.gguf holds its weights in other formats"):
        await client.lifecycle.update_weights(other)
    assert await read(client.submit([1, 2, 3], params)) == before
    held = engine.pool.allocate(1)  # as by a page that is being stored
    with pytest.raises(EngineBusy, match="1 pages are still being read or stored"):
        await client.lifecycle.update_weights(same)
    engine.pool.release(held)
    await client.lifecycle.update_weights(same)
    assert await read(client.submit([1, 2, 3], params)) != before
    assert client.stats().compiles_after_ready == 0
    client.shutdown()


async def test_weights_are_read_by_a_single_thread_where_an_engine_runs_meanwhile(
    client, real_engine, model_path, monkeypatch
):
    read_weights, narrow = real_engine.read_weights, []

    def noting(path=None):
        narrow.append(is_narrow_here())
        return read_weights(path)

    monkeypatch.setattr(real_engine, "read_weights", noting)
    for is_beside_others in (False, True):
        await client.lifecycle.sleep(forget_weights=True)
        await client.lifecycle.wake(is_beside_others=is_beside_others)
    assert narrow == [False, True]
    await client.lifecycle.update_weights(model_path)
    await client.lifecycle.pause()
    for is_beside_others in (False, True):
        await client.lifecycle.update_weights(model_path, is_beside_others=is_beside_others)
    await client.lifecycle.resume()
    assert narrow[2:] == [True, False, True]


async def test_a_timeout_ends_a_request_wherever_it_is(client, expected):
    running = submit(client, STORY, 500, timeout=0.4)
    token_ids, reason = await read(running)
    assert reason is FinishReason.TIMEOUT
    assert token_ids[:64] == expected(STORY, len(token_ids))
    await client.lifecycle.pause()
    waiting = submit(client, FACT, timeout=0.05)
    assert await asyncio.wait_for(read(waiting), PATIENCE_S) == ([], FinishReason.TIMEOUT)
    await client.lifecycle.resume()
    assert (await read(submit(client, FACT, timeout=60)))[0] == expected(FACT)


async def test_calls_to_an_ended_engine_fail_at_once(client):
    client.shutdown()
    with pytest.raises(EngineError, match="not running"):
        await client.lifecycle.pause()


async def test_the_next_client_of_a_sleeping_engine_finds_it_awake(client, real_engine, expected):
    await client.lifecycle.sleep()
    client.shutdown()
    successor = EngineClient(real_engine)
    successor.start(asyncio.get_running_loop())
    try:
        assert (await read(submit(successor, FACT)))[0] == expected(FACT)
    finally:
        successor.shutdown()
