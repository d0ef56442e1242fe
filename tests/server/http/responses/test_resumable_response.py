"""Streams of responses that are cut and go on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.support.responses_judge import judge
from tests.server.support.resumable import Follower

PATH = "/v1/responses"
BODY: dict[str, Any] = {"input": "tide é"}


def events_of(follower: Follower) -> list[dict[str, Any]]:
    return [json.loads(data) for data in follower.data]


async def test_cut_anywhere_nothing_is_lost_or_repeated(server: RunningServer) -> None:
    follower = Follower(server)
    await follower.begin(PATH, BODY, 2)
    while follower.status == 200 and events_of(follower)[-1]["type"] != "response.completed":
        await follower.go_on(3)
    events = events_of(follower)
    assert judge(events)["id"] == follower.stream_id
    assert follower.last_id == f"{follower.stream_id}:{len(events)}"
    await follower.go_on()
    assert follower.status == 204
    for after in ("99", "x"):
        status, answer = await server.get(f"/v1/streams/{follower.stream_id}?after={after}")
        assert (status, answer["error"]["param"]) == (400, "after")
    status, stored = await server.get(f"{PATH}/{follower.stream_id}")
    assert (status, stored["output"]) == (200, events[-1]["response"]["output"])
    by_number = Follower(server, f"../responses/{follower.stream_id}?stream=true&starting_after=4")
    await by_number.go_on()
    assert by_number.data == follower.data[5:]
    async with server.http.delete(f"{server.url}{PATH}/{follower.stream_id}") as response:
        assert response.status == 200
    assert server.served.streams.num_streams == 0


async def test_it_goes_on_through_a_cut_and_is_stopped(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    follower = Follower(server)
    beginning = asyncio.ensure_future(follower.begin(PATH, BODY, 3))
    await eventually(lambda: bool(engine.running))
    engine.step(2)
    await beginning
    engine.step(2)
    async with server.http.delete(f"{server.url}{PATH}/{follower.stream_id}") as response:
        assert response.status == 404, "it is not stored before its end"
    assert engine.running
    await follower.go_on(1)
    async with server.http.delete(f"{server.url}/v1/streams/{follower.stream_id}") as response:
        assert (await response.json())["deleted"] is True
    await server.assert_all_streams_ended()
    await follower.go_on()
    assert follower.status == 404


async def test_without_room_it_is_a_plain_stream(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, resume_max_streams=1)
    first, second = Follower(server), Follower(server)
    reading = asyncio.ensure_future(first.begin(PATH, BODY))
    await eventually(lambda: len(engine.running) == 1)
    plain = asyncio.ensure_future(second.begin(PATH, BODY))
    await eventually(lambda: len(engine.running) == 2)
    engine.step(100)
    await asyncio.gather(reading, plain)
    assert (second.stream_id, second.last_id) == ("none", "")
    assert judge(events_of(second))["output"][0]["content"] == judge(events_of(first))["output"][0]["content"]


async def test_what_is_refused_leaves_nothing(server: RunningServer) -> None:
    for wrong in ({"temperature": 9}, {"stream": False}, {"background": True}, {"previous_response_id": "resp_x"}):
        status, answer = await server.post(PATH, {**BODY, "stream": True, "resumable": True, **wrong})
        assert status in (400, 404), answer
    assert server.served.streams.num_streams == 0
