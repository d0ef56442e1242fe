"""Streams that are cut and resumed, over WebSockets."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.support.resumable import Follower
from tests.server.support.socket_client import open_socket, read_to_end, receive, send

TEXT = "the tide comes in, é and 海 with it"


@pytest.mark.parametrize("num_answers", [1, 3])
async def test_cut_anywhere_nothing_is_lost_or_repeated(server: RunningServer, num_answers: int) -> None:
    cuts, messages = random.Random(num_answers), list[dict[str, Any]]()
    first: dict[str, Any] = {"type": "generate", "prompt": TEXT, "n": num_answers, "max_tokens": 60, "resumable": True}
    stream = ""
    while not messages or messages[-1]["type"] != "done":
        client_id = f"reader {len(messages)}"
        async with open_socket(server) as socket:
            if messages:
                await send(socket, type="resume", id=client_id, stream=stream, after=messages[-1]["place"])
            else:
                await send(socket, **first, id=client_id)
            for _ in range(cuts.randint(1, 9)):
                messages.append(await receive(socket))
                assert messages[-1]["id"] == client_id
                stream = stream or messages[-1]["stream"]
                if messages[-1]["type"] == "done":
                    break
            socket.transport.abort()  # as a cut does; a close would wait until everything is read
    for index in range(num_answers):
        assert "".join(message["text"] for message in messages if message.get("index") == index) == TEXT
    assert [message["type"] for message in messages if message["type"] != "delta"] == ["start", "done"]


async def test_on_another_socket_it_goes_on_and_is_cancelled(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with open_socket(server) as one, open_socket(server) as two:
        await send(one, type="generate", id="a", prompt="tide", resumable=True)
        start = await receive(one)
        await send(two, type="resume", id="b", stream=start["stream"], after=start["place"])
        engine.step(2)
        for socket, client_id in ((one, "a"), (two, "b")):
            assert [(await receive(socket))["text"] for _ in range(2)] == ["t", "i"]
            await send(socket, type="cancel", id="nobody")
            assert (await receive(socket))["error"]["code"] == "unknown_id", client_id
        await send(two, type="cancel", id="b")
        assert [(await read_to_end(socket, "ab"[at]))[-1]["finish_reason"] for at, socket in enumerate((one, two))] == [
            "abort",
            "abort",
        ]


async def test_a_socket_that_closes_does_not_end_it(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", prompt="tide", resumable=True)
        await send(socket, type="generate", id="b", prompt="tide")
        starts = {message["id"]: message for message in [await receive(socket), await receive(socket)]}
        assert "stream" not in starts["b"]
        await eventually(lambda: len(engine.running) == 2)
    await eventually(lambda: len(engine.running) == 1)
    engine.step(5)
    async with open_socket(server) as socket:
        await send(socket, type="resume", id="c", stream=starts["a"]["stream"], after=starts["a"]["place"])
        *deltas, done = await read_to_end(socket, "c")
    assert "".join(delta["text"] for delta in deltas) == "tide"
    assert done["finish_reason"] == "stop"


async def test_what_cannot_be_resumed_is_refused(server: RunningServer) -> None:
    follower = Follower(server)
    await follower.begin("/v1/completions", {"prompt": "tide"})
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", prompt="tide", resumable=True)
        messages = await read_to_end(socket, "a")
        stream, end = messages[0]["stream"], messages[-1]["place"]
        for frame, code in (
            ({"stream": follower.stream_id}, "wrong_transport"),
            ({"stream": "0" * 32}, "unknown_stream"),
            ({"stream": 5}, "invalid_value"),
            ({}, "invalid_value"),
            ({"stream": stream, "after": True}, "invalid_value"),
            ({"stream": stream, "after": -1}, "invalid_value"),
            ({"stream": stream, "after": end + 1}, "invalid_value"),
            ({"stream": stream, "after": 10**30}, "invalid_value"),
            ({"stream": stream, "after": end}, "stream_ended"),
            ({"stream": stream, "more": 1}, "unknown_parameter"),
        ):
            await send(socket, type="resume", id="b", **frame)
            error = await receive(socket)
            assert (error["type"], error["id"], error["error"]["code"]) == ("error", "b", code)
        async with server.http.get(f"{server.url}/v1/streams/{stream}") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (409, "wrong_transport")
        await send(socket, type="resume", id='"id":"a"', stream=stream)
        again = await read_to_end(socket, '"id":"a"')
        assert again == [{**message, "id": '"id":"a"'} for message in messages]
