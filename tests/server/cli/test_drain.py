"""The end of the server, within the time that an orchestrator gives."""

from __future__ import annotations

import asyncio
import time

from server.cli import serve
from server.cli.serve import drain
from server.http.transport.connections import SHUTDOWN_S
from server.http.websocket import CLOSE_TIMEOUT_S
from server.startup.settings import ServerSettings
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import StartServer, eventually
from tests.server.support.socket_client import open_socket, read_to_end, send

GRACE_S = 30.0  # of Kubernetes


def test_all_waits_together_are_within_the_grace_period() -> None:
    waits = ServerSettings().shutdown_timeout + serve.LAST_EVENT_S + 1.0 + CLOSE_TIMEOUT_S + SHUTDOWN_S + serve.JOIN_S
    assert waits < GRACE_S - 2


async def test_a_hung_engine_still_lets_each_stream_end_once(start_server: StartServer, monkeypatch) -> None:
    monkeypatch.setattr(serve, "LAST_EVENT_S", 0.2)
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    asking = [asyncio.create_task(server.stream_bytes("/v1/completions", {"prompt": "ab"})) for _ in range(3)]
    async with open_socket(server) as socket:
        for key in "xy":
            await send(socket, type="generate", id=key, prompt="ab")
        await eventually(lambda: len(engine.running) == 5)
        for stream in list(engine.running.values()):
            monkeypatch.setattr(stream, "abort", lambda: None)  # the thread that would obey does not turn

        def end_streams() -> None:
            for stream in list(engine.running.values()):
                stream.finish("abort")

        monkeypatch.setattr(type(server.served.first.engine), "end_streams", lambda _self: end_streams(), raising=False)
        started = time.monotonic()
        await drain(server.served, 0.2)
        assert time.monotonic() - started < PATIENCE_S / 2  # nothing else ends a stream of this engine
        messages = [*await read_to_end(socket, "x"), *await read_to_end(socket, "y")]
        ends = [message for message in messages if message["type"] in ("done", "error")]
    answers = await asyncio.gather(*asking)
    for answer in answers:
        assert answer.count(b'"finish_reason":"abort"') == 1
        assert answer.endswith(b"data: [DONE]\n\n")
    assert sorted(end["id"] for end in ends) == ["x", "y"]
    assert {end["finish_reason"] for end in ends} == {"abort"}


async def test_a_request_whose_answers_are_still_being_queued_is_waited_for(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    num_answers = 64 * 16
    asking = asyncio.create_task(server.post("/v1/completions", {"prompt": ["a"] * 64, "n": 16}))
    while not engine.submitted:
        assert not asking.done()
        await asyncio.sleep(0)
    server.served.start_draining()
    draining = asyncio.create_task(server.served.wait_idle(PATIENCE_S))
    while len(engine.submitted) < num_answers:
        assert not draining.done()
        await asyncio.sleep(0)
    engine.step(2)
    assert await draining
    status, answer = await asking
    assert (status, len(answer["choices"])) == (200, num_answers)
