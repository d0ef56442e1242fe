"""Streams that go on after a restart of their server."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from server.serving.residency import PlannedLoad
from server.serving.served_model import ServedModel
from server.startup.model_sizes import ModelBytes
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.support.resumable import Follower
from tests.server.support.socket_client import open_socket, read_to_end, receive, send

TEXT = "the tide comes in, é and 海 with it"


async def cut_down(server: RunningServer) -> None:
    """Leaves the store as a killed server does: what runs has no end, and nothing is forgotten."""
    await server.served.streams.close()
    await server.served.store.close()


async def test_over_events_it_goes_on_at_the_character(start_server: StartServer, tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    for body in ({"prompt": TEXT, "max_tokens": 60}, {"prompt": TEXT, "n": 3, "max_tokens": 60}):
        engine = FakeEngineClient(is_manual=True)
        one = await start_server(engine, store=store)
        follower = Follower(one)
        reading = asyncio.ensure_future(follower.begin("/v1/completions", body, 11))
        await eventually(lambda engine=engine: bool(engine.running))  # type: ignore[misc]
        engine.step(11)
        await reading
        seeds = [stream.params.seed for stream in engine.submitted]
        await cut_down(one)
        again = FakeEngineClient()
        follower.server = await start_server(again, store=store)
        two = Follower(follower.server, follower.stream_id, follower.last_id)
        await asyncio.gather(follower.go_on(), two.go_on())
        assert [stream.params.seed for stream in again.submitted] == seeds
        assert None not in seeds
        for index in range(int(body.get("n", 1))):  # type: ignore[call-overload]
            assert follower.text(index) == TEXT
        assert follower.is_done
        assert len(two.data) == len(follower.data) - 11
        assert len({chunk["id"] for chunk in follower.chunks}) == 1
        await cut_down(follower.server)  # type: ignore[arg-type]


async def test_a_reader_waits_visibly_while_the_server_loads_its_first_model(
    start_server: StartServer, tmp_path: Path
) -> None:
    store = str(tmp_path / "store.db")
    one = await start_server(FakeEngineClient(), store=store)
    follower = Follower(one)
    await follower.begin("/v1/completions", {"prompt": TEXT, "max_tokens": 60, "return_progress": True}, 5)
    await cut_down(one)
    engine, may_load = FakeEngineClient(), asyncio.Event()
    two = await start_server(engine, store=store, is_open=False, ping_interval=0.02)

    class Loader:
        async def known_bytes(self, model: ServedModel) -> ModelBytes:
            return ModelBytes()

        async def plan(self, model: ServedModel) -> PlannedLoad:
            return PlannedLoad(ModelBytes(), partial(self.bring, model))

        async def bring(self, model: ServedModel) -> None:
            await may_load.wait()
            engine.start(asyncio.get_running_loop())
            model.open(engine.client, FakeTextModel().model)

    two.served.start(Loader())
    url, headers = f"{two.url}/v1/streams/{follower.stream_id}", {"Last-Event-ID": follower.last_id}
    async with two.http.get(url, headers=headers) as response:
        assert response.status == 200
        received = b""
        while received.count(b": ping") < 3 or b'"stage":"loading"' not in received:
            received += (more := await response.content.readany())
            assert more, received  # the answer has not ended
        assert b"id: " not in received
        may_load.set()
        received += await response.read()
    ids = [line for line in received.decode().split("\n") if line.startswith("id: ")]
    has_read = int(follower.last_id.rpartition(":")[2])  # less than five where an event of progress was among them
    assert ids[0] == f"id: {follower.stream_id}:{has_read + 1}"
    assert received.endswith(b"data: [DONE]\n\n")
    await cut_down(two)


async def test_over_a_socket_it_goes_on_at_the_character(start_server: StartServer, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store": str(tmp_path / "store.db")}
    one = await start_server(FakeEngineClient(), **settings)
    async with open_socket(one) as socket:
        await send(socket, type="generate", id="a", messages=[{"role": "user", "content": TEXT}], resumable=True)
        messages = [await receive(socket) for _ in range(9)]
        socket.transport.abort()
    await cut_down(one)
    two = await start_server(FakeEngineClient(), **settings)
    async with open_socket(two) as socket:
        await send(socket, type="resume", id="b", stream=messages[0]["stream"], after=messages[-1]["place"])
        messages += await read_to_end(socket, "b")
    assert TEXT in "".join(message.get("text", "") for message in messages)
    assert [message["place"] for message in messages] == [*range(1, len(messages) + 1)]


async def test_what_was_stopped_or_has_expired_is_gone_after_a_restart(
    start_server: StartServer, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"store": str(tmp_path / "store.db")}
    one = await start_server(FakeEngineClient(), **settings)
    stopped, left = Follower(one), Follower(one)
    await stopped.begin("/v1/completions", {"prompt": "tide"})
    async with one.http.delete(f"{one.url}/v1/streams/{stopped.stream_id}") as response:
        assert response.status == 200
    await left.begin("/v1/completions", {"prompt": "tide"})
    assert len(await one.served.store.keys("stream")) == 1
    await cut_down(one)
    two = await start_server(FakeEngineClient(), **settings, resume_grace=0.1)
    stopped.server = two
    await stopped.go_on()
    assert stopped.status == 404
    async with asyncio.timeout(PATIENCE_S):
        while await two.served.store.keys("stream"):
            await asyncio.sleep(0.02)


async def test_another_key_or_another_model_gets_nothing(start_server: StartServer, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "store": str(tmp_path / "store.db"), "api_keys": ("key-of-one one", "key-of-two two"),
    }  # fmt: skip
    one = await start_server(FakeEngineClient(), **settings)
    one.http.headers["Authorization"] = "Bearer key-of-one"
    follower = Follower(one)
    await follower.begin("/v1/completions", {"prompt": "tide"}, 2)
    await cut_down(one)
    follower.server = two = await start_server(FakeEngineClient(max_model_len=400), **settings)
    two.http.headers["Authorization"] = "Bearer key-of-two"
    await follower.go_on()
    assert follower.status == 404
    two.http.headers["Authorization"] = "Bearer key-of-one"
    async with two.http.get(f"{two.url}/v1/streams/{follower.stream_id}") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (410, "model_changed")


async def test_a_server_that_shuts_down_leaves_the_stream_to_the_next(
    start_server: StartServer, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"store": str(tmp_path / "store.db")}
    engine = FakeEngineClient(is_manual=True)
    one = await start_server(engine, **settings)
    follower = Follower(one)
    reading = asyncio.ensure_future(follower.begin("/v1/completions", {"prompt": "tide"}))
    await eventually(lambda: bool(engine.running))
    engine.step(2)
    await eventually(lambda: len(follower.data) == 2)
    one.served.start_draining()
    one.served.abort_all()
    await reading
    assert follower.chunks[-1]["error"]["code"] == "draining"
    follower.data.pop()
    await cut_down(one)
    follower.server = await start_server(FakeEngineClient(), **settings)
    await follower.go_on()
    assert (follower.text(), follower.is_done) == ("tide", True)
