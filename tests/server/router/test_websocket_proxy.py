"""Sockets through a front: each reaches the replica that has what its first message names."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from server.admission.keyring import WEBSOCKET_KEY_PREFIX, WEBSOCKET_PROTOCOL
from tests.patience import PATIENCE_S
from tests.server.conftest import StartServer, eventually
from tests.server.http.streams.test_websocket_fuzz import HANDSHAKE, PING, frame
from tests.server.http.transport.test_crowds import MOST, most_in_a_turn
from tests.server.router.conftest import FRONT_KEY, RunningFront, StartFront
from tests.server.support.resumable import Follower

KEY = "a-client-of-this-test"
PROTOCOLS = (WEBSOCKET_PROTOCOL, WEBSOCKET_KEY_PREFIX + KEY)


@pytest.fixture
async def pair(start_server: StartServer, start_front: StartFront) -> RunningFront:
    settings: dict[str, Any] = {"front_key": FRONT_KEY, "api_keys": (KEY,)}
    return await start_front([await start_server(**settings) for _ in range(2)], **settings)


async def told(socket: aiohttp.ClientWebSocketResponse[bool], last: tuple[str, ...], **message: Any) -> dict[str, Any]:
    """The first and the last of the messages that answer one."""
    await socket.send_json(message)
    async with asyncio.timeout(PATIENCE_S):
        found = [await socket.receive_json()]
        while found[-1]["type"] not in last:
            found.append(await socket.receive_json())
    return {"first": found[0], "last": found[-1], "text": "".join(each.get("text", "") for each in found)}


async def test_a_socket_that_resumes_or_follows_finds_the_replica(pair: RunningFront) -> None:
    for number in range(3):  # the replicas take turns, so that some are not the next one's
        async with pair.http.ws_connect(pair.url + "/v1/stream", protocols=PROTOCOLS) as socket:
            begun = await told(
                socket, ("done",), type="generate", id="a", prompt=f"tide {number}", resumable=True, max_tokens=9
            )
        stream = begun["first"]["stream"]
        async with pair.http.ws_connect(pair.url + "/v1/stream", protocols=PROTOCOLS) as socket:
            again = await told(socket, ("done", "error"), type="resume", id="b", stream=stream)
            assert (again["last"]["type"], again["text"]) == ("done", begun["text"])
        async with pair.http.ws_connect(pair.url + "/v1/responses", protocols=PROTOCOLS) as socket:
            last = ("response.completed", "error")
            stored = (await told(socket, last, type="response.create", input="one"))["last"]["response"]
        async with pair.http.ws_connect(pair.url + "/v1/responses", protocols=PROTOCOLS) as socket:
            more = await told(socket, last, type="response.create", input="two", previous_response_id=stored["id"])
            assert more["last"]["type"] == "response.completed"
    for stranger in ("0" * 32, "odd"):
        async with pair.http.ws_connect(pair.url + "/v1/stream", protocols=PROTOCOLS) as socket:
            refused = await told(socket, ("error",), type="resume", id="b", stream=stranger)
            assert refused["first"]["error"]["code"] == "unknown_stream"
    for server in pair.servers.values():
        await server.served.streams.close()


async def test_a_first_message_of_any_kind_reaches_a_replica(pair: RunningFront) -> None:
    for first in ("[" * 50_000, "{", "5", '{"stream": {}}'):
        async with pair.http.ws_connect(pair.url + "/v1/stream", protocols=PROTOCOLS) as socket:
            await socket.send_str(first)
            assert (await socket.receive_json())["type"] == "error"
            [used] = [replica for replica in pair.router.replicas if replica.num_open]
            assert used.num_open == 1
        await eventually(lambda: not any(replica.num_open for replica in pair.router.replicas))


async def test_a_message_of_a_replica_that_is_too_long_loses_the_socket(
    pair: RunningFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.router.websocket_proxy.MAX_EVENT", 40)
    address = pair.url + "/v1/stream"
    async with asyncio.timeout(PATIENCE_S), pair.http.ws_connect(address, protocols=PROTOCOLS) as socket:
        await socket.send_json({"type": "generate", "id": "a" * 40, "prompt": "tide", "max_tokens": 9})
        end = await socket.receive()
    assert (end.type, end.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.SERVICE_RESTART)
    await eventually(lambda: not any(replica.num_open for replica in pair.router.replicas))


async def test_streams_of_responses_are_found_after_a_cut(start_server: StartServer, start_front: StartFront) -> None:
    front = await start_front(
        [await start_server(front_key=FRONT_KEY) for _ in range(2)], front_key=FRONT_KEY
    )  # fmt: skip
    for number in range(3):
        follower = Follower(front)
        await follower.begin("/v1/responses", {"input": f"tide {number}"}, 2)
        while follower.status == 200 and json.loads(follower.data[-1])["type"] != "response.completed":
            await follower.go_on(3)
        events = [json.loads(data) for data in follower.data]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        by_number = Follower(front, f"../responses/{follower.stream_id}?stream=true&starting_after=4")
        await by_number.go_on()
        assert by_number.data == follower.data[5:]
        async with front.http.delete(f"{front.url}/v1/responses/{follower.stream_id}") as answer:
            assert answer.status == 200
    assert not any(server.served.streams.num_streams for server in front.servers.values())


async def test_small_frames_give_the_loop_its_turns(
    start_server: StartServer, start_front: StartFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = await start_front([await start_server()])
    answered, pong = list[bytes](), web.WebSocketResponse.pong

    async def note_pong(socket: web.WebSocketResponse, message: bytes = b"") -> None:
        answered.append(message)
        await pong(socket, message)

    monkeypatch.setattr(web.WebSocketResponse, "pong", note_pong)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(front.url.rpartition(":")[2]))
    writer.write(HANDSHAKE)
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    writer.write(frame(PING, b"") * 1000)
    assert 0 < await most_in_a_turn(answered, 1000) <= MOST
    writer.transport.abort()
