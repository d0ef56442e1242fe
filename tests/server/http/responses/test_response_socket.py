"""The WebSocket mode of /v1/responses, judged by OpenAI's library: lanes, chains, errors, the end."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect

from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, eventually
from tests.server.http.responses.conftest import TEMPLATE, text_of
from tests.server.support.responses_judge import TERMINAL, judge


@pytest.fixture
async def socket(server: RunningServer) -> AsyncIterator[ClientConnection]:
    async with open_socket(server) as opened:
        yield opened


def open_socket(server: RunningServer) -> connect:
    return connect(server.url.replace("http", "ws", 1) + "/v1/responses", proxy=None)


async def create(socket: ClientConnection, **body: Any) -> None:
    await socket.send(json.dumps({"type": "response.create", **body}))


async def receive(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        event: dict[str, Any] = json.loads(await socket.recv(decode=True))
    return event


async def respond(socket: ClientConnection, **body: Any) -> dict[str, Any]:
    """The response to one message, its events judged."""
    await create(socket, **body)
    events = [await receive(socket)]
    while events[-1]["type"] not in TERMINAL:
        events.append(await receive(socket))
    return judge(events, on_socket=True)


async def test_a_chain_of_responses_that_are_not_stored(socket: ClientConnection, server: RunningServer) -> None:
    first = await respond(socket, input="one", store=False)
    second = await respond(socket, input="two", store=False, previous_response_id=first["id"])
    assert text_of(second) == "user:one|assistant:user:one||user:two|"
    assert server.served.store.num_records == 0
    async with open_socket(server) as other:  # which remembers nothing of the first
        await create(other, input="x", previous_response_id=second["id"])
        event = await receive(other)
        assert (event["type"], event["status"]) == ("error", 400)
        assert event["error"]["code"] == "previous_response_not_found"


async def test_a_chain_goes_on_over_http_where_it_is_stored(socket: ClientConnection, server: RunningServer) -> None:
    first = await respond(socket, input="one")
    status, second = await server.post("/v1/responses", {"input": "two", "previous_response_id": first["id"]})
    assert (status, text_of(second)) == (200, "user:one|assistant:user:one||user:two|")
    third = await respond(socket, input="three", previous_response_id=second["id"], store=False)
    assert text_of(third).startswith("user:one|assistant:user:one||user:two|")


async def test_a_prompt_may_be_computed_beforehand(socket: ClientConnection) -> None:
    prepared = await respond(socket, input="one", generate=False, store=False)
    assert (prepared["status"], prepared["output"], prepared["usage"]["output_tokens"]) == ("completed", [], 0)
    response = await respond(socket, input="two", previous_response_id=prepared["id"])
    assert text_of(response) == "user:one|user:two|"


async def test_lanes_run_side_by_side_and_each_in_its_order(start_server) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, text_model=FakeTextModel(TEMPLATE))
    async with open_socket(server) as socket:
        for name, text in (("a", "1"), ("a", "2"), ("b", "3"), (None, "4"), (None, "5")):
            await create(socket, input=text, **({} if name is None else {"stream_id": name}))
        await eventually(lambda: len(engine.running) == 3)
        events = defaultdict(list)
        while sum(event["type"] in TERMINAL for lane in events.values() for event in lane) < 5:
            engine.step()
            await asyncio.sleep(0.001)
            while True:
                try:
                    event = json.loads(await asyncio.wait_for(socket.recv(), 0.002))
                except TimeoutError:
                    break
                events[event.get("stream_id")].append(event)
    texts = {}
    for name, lane in events.items():
        ends = [at for at, event in enumerate(lane, start=1) if event["type"] in TERMINAL]
        starts = [0, *ends[:-1]]
        texts[name] = [text_of(judge(lane[start:end], on_socket=True)) for start, end in zip(starts, ends, strict=True)]
    assert texts == {"a": ["user:1|", "user:2|"], "b": ["user:3|"], None: ["user:4|", "user:5|"]}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("no JSON", None),
        ("[]", None),
        ("{}", "type"),
        ('{"type": "response.steer"}', "type"),
        ('{"type": "response.create"}', "input"),
        ('{"type": "response.create", "input": "x", "temperature": 9}', "temperature"),
        ('{"type": "response.create", "input": "x", "background": true}', "background"),
        ('{"type": "response.create", "input": "x", "stream_id": 5}', "stream_id"),
        ('{"type": "response.create", "input": "x", "generate": "no"}', "generate"),
        ('{"type": "response.create", "input": "x", "model": "none"}', "model"),
    ],
)
async def test_what_is_wrong_is_told_and_the_socket_goes_on(
    socket: ClientConnection, message: str, param: str | None
) -> None:
    await socket.send(message)
    event = await receive(socket)
    assert (event["type"], event["error"]["param"]) == ("error", param)
    assert event["error"]["message"]
    assert text_of(await respond(socket, input="x", stream=True)) == "user:x|"


@pytest.mark.parametrize("by_id", [True, False])
async def test_a_response_is_cancelled_on_its_socket(start_server, by_id: bool) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, text_model=FakeTextModel(TEMPLATE))
    async with open_socket(server) as socket:
        for lane in ("a", "b"):
            await create(socket, input="tide", stream_id=lane)
        events = [await receive(socket) for _ in range(4)]
        await eventually(lambda: len(engine.running) == 2)
        engine.step()
        response_id = next(event["response"]["id"] for event in events if event["stream_id"] == "a")
        named = {"response_id": response_id} if by_id else {"stream_id": "a"}
        await socket.send(json.dumps({"type": "response.cancel", **named}))
        while events[-1]["type"] not in TERMINAL:
            events.append(await receive(socket))
        last = events[-1]
        assert (last["stream_id"], last["response"]["id"]) == ("a", response_id)
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        assert len(engine.running) == 1
        await socket.send(json.dumps({"type": "response.cancel", **named}))
        refusal = await receive(socket)
        while refusal["type"] != "error":
            refusal = await receive(socket)
        assert (refusal["status"], refusal["error"]["code"]) == (404, "not_found")


async def test_a_socket_that_closes_ends_its_responses(start_server) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, text_model=FakeTextModel(TEMPLATE))
    async with open_socket(server) as socket:
        for lane in "abc":
            await create(socket, input="x", stream_id=lane)
            await create(socket, input="y", stream_id=lane)
        await eventually(lambda: len(engine.running) == 3)
    await eventually(lambda: not engine.running)
    assert server.served.store.num_records == 0


async def test_messages_that_wait_for_others_leave_room_for_everybody(start_server) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, text_model=FakeTextModel(TEMPLATE), max_body_bytes=2048)
    async with open_socket(server) as socket:
        await create(socket, input="1")
        await eventually(lambda: len(engine.running) == 1)
        for text in ("2", "3"):
            await create(socket, input=text * 1500)
        while (event := await receive(socket))["type"] != "error":
            pass
        assert (event["status"], event["error"]["code"]) == (429, "too_much_waits")
        assert server.served.admission_budget.num_requests == 0
        assert 1500 < server.served.admission_budget.num_bytes < 2048
    await eventually(lambda: server.served.admission_budget.num_bytes == 0)


async def test_the_librarys_own_socket(server: RunningServer) -> None:
    async with (
        AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as client,
        client.responses.connect() as connection,
    ):
        await connection.response.create(model="fake", input="tide", store=False)
        text = ""
        async for event in connection:
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.completed":
                break
        assert text == "user:tide|" == event.response.output_text
        await connection.response.create(model="none", input="tide")
        error = await connection.recv()
        assert error.type == "error"
        assert error.error.code == "model_not_found"
