"""An engine that nobody uses sleeps, and the next request wakes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.interface.types import EngineState
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually

ADMIN = "admin-secret-3"


async def operate(server: RunningServer, change: str) -> str:
    """Changes the engine's state as an operator does; returns the state that the answer tells."""
    headers = {"Authorization": f"Bearer {ADMIN}"}
    async with server.http.post(f"{server.url}/admin/{change}", headers=headers) as response:
        assert response.status == 200
        state: str = (await response.json())["state"]
        return state


async def check_waits_for_operator(
    server: RunningServer, engine: FakeEngineClient, asking: asyncio.Task[tuple[int, Any]]
) -> None:
    """A request does not wake the engine, and is answered once an operator has."""
    await asyncio.sleep(0.05)
    assert engine.lifecycle.state is EngineState.ASLEEP
    assert "wake" not in engine.lifecycle.calls
    assert await operate(server, "wake") == "running"
    assert (await asking)[0] == 200


async def test_a_quiet_engine_sleeps_and_wakes_for_a_request_alone(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, sleep_idle_seconds=0.05)
    await eventually(lambda: engine.lifecycle.state is EngineState.ASLEEP)
    for path in ("/health", "/metrics", "/v1/models", "/liveness"):
        async with server.http.get(server.url + path) as response:
            assert response.status == 200
    status, body = await server.get("/readiness")
    assert (status, body) == (200, {"status": "ready", "detail": "requests are accepted; the engine is asleep"})
    assert engine.lifecycle.calls == [("sleep", False)]  # on a CPU the weights stay
    assert (await server.post("/v1/completions", {"prompt": "ab"}))[1]["choices"][0]["text"] == "ab"
    assert engine.lifecycle.calls[:2] == [("sleep", False), "wake"]
    await eventually(lambda: engine.lifecycle.state is EngineState.ASLEEP)  # and again


async def test_a_stream_that_wakes_the_engine_pings_until_it_is_awake(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, sleep_idle_seconds=0.02, ping_interval=0.02)
    await eventually(lambda: engine.lifecycle.state is EngineState.ASLEEP)
    may_wake = asyncio.Event()
    wake = engine.lifecycle.wake

    async def wake_slowly(*, is_wanted: Callable[[], bool]) -> None:
        await may_wake.wait()
        await wake(is_wanted=is_wanted)

    engine.lifecycle.wake = wake_slowly  # type: ignore[method-assign]
    async with server.http.post(server.url + "/v1/completions", json={"prompt": "ab", "stream": True}) as response:
        received = b""
        while received.count(b": ping") < 3:
            received += await response.content.readany()
        assert b"data:" not in received
        may_wake.set()
        rest = await response.read()
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_long_request_keeps_the_engine_awake(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, sleep_idle_seconds=0.02)
    asking = asyncio.create_task(server.post("/v1/completions", {"prompt": "ab"}))
    await eventually(lambda: bool(engine.running) and engine.lifecycle.state is EngineState.RUNNING)
    num_calls = len(engine.lifecycle.calls)
    await asyncio.sleep(0.1)
    assert len(engine.lifecycle.calls) == num_calls
    assert engine.lifecycle.state is EngineState.RUNNING
    engine.step(3)
    assert (await asking)[0] == 200


async def test_an_engine_that_cannot_be_woken_ends_its_requests_and_is_tried_again(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, sleep_idle_seconds=0.02)
    await eventually(lambda: engine.lifecycle.state is EngineState.ASLEEP)
    engine.lifecycle.error = MemoryError("no room")
    status, body = await server.post("/v1/completions", {"prompt": "ab"})
    assert (status, body["choices"][0]["finish_reason"]) == (200, "abort")
    assert (await server.post("/v1/completions", {"prompt": "ab"}))[1]["choices"][0]["text"] == "ab"


async def test_what_an_operator_has_put_to_sleep_stays_asleep(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, sleep_idle_seconds=1000.0, admin_keys=(ADMIN,))
    assert await operate(server, "sleep") == "asleep"
    asking = asyncio.create_task(server.post("/v1/completions", {"prompt": "ab"}))
    await eventually(lambda: bool(engine.running))
    await check_waits_for_operator(server, engine, asking)


async def test_a_sleep_that_waits_for_its_turn_is_given_up_where_a_request_comes(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    engine.lifecycle.may_tell.clear()
    changing = asyncio.create_task(engine.lifecycle.update_weights(Path("x.gguf")))
    await asyncio.sleep(0)  # it has its turn before the engine can have fallen asleep
    server = await start_server(engine, sleep_idle_seconds=0.05)
    await asyncio.sleep(0.2)  # the quiet time passes while the change is on its way
    calls = list(engine.lifecycle.calls)
    idle_sleep = server.served.first.idle_sleep
    assert idle_sleep is not None
    with idle_sleep.use():
        engine.lifecycle.may_tell.set()
        await changing
        await asyncio.sleep(0.05)
        assert engine.lifecycle.calls == calls
        assert engine.lifecycle.state is EngineState.RUNNING


async def test_an_engine_that_falls_asleep_again_while_its_wake_ends_is_woken_once_more(
    start_server: StartServer,
) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, sleep_idle_seconds=0.02)
    idle_sleep = server.served.first.idle_sleep
    assert idle_sleep is not None
    await eventually(lambda: engine.lifecycle.state is EngineState.ASLEEP)
    engine.lifecycle.may_tell.clear()
    with idle_sleep.use():  # and leaves before the engine is awake
        pass
    await eventually(lambda: engine.lifecycle.state is EngineState.RUNNING)
    await asyncio.sleep(0.1)  # the quiet time passes before anybody is told that it is awake
    engine.lifecycle.may_tell.set()
    await eventually(lambda: engine.lifecycle.calls == [("sleep", False), "wake", ("sleep", False)])
    async with asyncio.timeout(PATIENCE_S):
        assert (await server.post("/v1/completions", {"prompt": "ab"}))[1]["choices"][0]["text"] == "ab"


async def test_what_an_operator_has_woken_does_not_fall_asleep_before_the_operator_is_told(
    start_server: StartServer,
) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, sleep_idle_seconds=0.05, admin_keys=(ADMIN,))
    assert await operate(server, "sleep") == "asleep"
    engine.lifecycle.may_tell.clear()
    waking = asyncio.create_task(operate(server, "wake"))
    await eventually(lambda: engine.lifecycle.state is EngineState.RUNNING)
    await asyncio.sleep(0.2)
    engine.lifecycle.may_tell.set()
    assert await waking == "running"
    async with asyncio.timeout(PATIENCE_S):
        assert (await server.post("/v1/completions", {"prompt": "ab"}))[1]["choices"][0]["text"] == "ab"


async def test_a_request_behind_the_sleep_of_an_operator_does_not_undo_it(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, sleep_idle_seconds=0.02, admin_keys=(ADMIN,))
    await eventually(lambda: engine.lifecycle.state is EngineState.ASLEEP)
    engine.lifecycle.may_tell.clear()
    sleeping = asyncio.create_task(operate(server, "sleep"))
    await eventually(lambda: len(engine.lifecycle.calls) == 2)
    asking = asyncio.create_task(server.post("/v1/completions", {"prompt": "ab"}))
    await eventually(lambda: bool(engine.running))
    engine.lifecycle.may_tell.set()
    assert await sleeping == "asleep"
    await check_waits_for_operator(server, engine, asking)


async def test_what_an_operator_puts_to_sleep_while_it_is_taken_over_is_not_woken_by_a_request(
    start_server: StartServer,
) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, sleep_idle_seconds=0.02, admin_keys=(ADMIN,))
    idle_sleep = server.served.first.idle_sleep
    assert idle_sleep is not None
    await eventually(lambda: engine.lifecycle.state is EngineState.ASLEEP)
    idle_sleep.take_over()
    assert await operate(server, "sleep") == "asleep"
    idle_sleep.hand_back()
    asking = asyncio.create_task(server.post("/v1/completions", {"prompt": "ab"}))
    await eventually(lambda: bool(engine.running))
    await check_waits_for_operator(server, engine, asking)


async def test_an_engine_that_an_operator_puts_to_sleep_is_not_woken_by_being_handed_back(
    start_server: StartServer,
) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, sleep_idle_seconds=0.02)
    idle_sleep = server.served.first.idle_sleep
    assert idle_sleep is not None
    await eventually(lambda: engine.lifecycle.state is EngineState.ASLEEP)
    idle_sleep.take_over()
    with idle_sleep.operate():
        idle_sleep.hand_back()
        await asyncio.sleep(0.02)
        assert engine.lifecycle.calls == [("sleep", False)]
