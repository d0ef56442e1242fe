"""Responses that nobody waits for: they go on, are followed from any event, cancelled and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.http.responses.conftest import TEMPLATE, text_of
from tests.server.support.responses_judge import judge, judge_response, parse_sse


@pytest.fixture
async def slow(start_server: StartServer) -> RunningServer:
    """Its model makes a token for each `engine.step()`."""
    engine = FakeEngineClient(respond=lambda *_: list(b"one two three"), is_manual=True)
    return await start_server(engine, text_model=FakeTextModel(TEMPLATE))


@pytest.fixture
async def client(slow: RunningServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=slow.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


async def begin(server: RunningServer, **body: Any) -> str:
    status, response = await server.post("/v1/responses", {"input": "x", "background": True, **body})
    assert (status, judge_response(response)["status"]) == (200, "queued")
    return str(response["id"])


async def run(server: RunningServer, steps: int) -> None:
    await eventually(lambda: bool(server.engine.running))
    for _ in range(steps):
        server.engine.step()
        await asyncio.sleep(0.002)


async def events_of(server: RunningServer, response_id: str, **query: Any) -> list[dict[str, Any]]:
    place = f"{server.url}/v1/responses/{response_id}"
    async with server.http.get(place, params={"stream": "true", **query}) as answer:
        assert answer.status == 200, await answer.text()
        return parse_sse(await answer.read())


async def test_it_is_made_without_a_connection(slow: RunningServer) -> None:
    known = await begin(slow)
    assert (await slow.get(f"/v1/responses/{known}"))[1]["status"] == "queued"
    await run(slow, 14)
    await slow.assert_all_streams_ended()
    events = await events_of(slow, known)
    assert [event["type"] for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    response = judge(events)
    assert text_of(response) == "one two three"
    assert (await slow.get(f"/v1/responses/{known}"))[1] == response


async def test_it_is_followed_from_any_event(slow: RunningServer) -> None:
    known = await begin(slow, stream=False)
    await run(slow, 5)
    early = asyncio.ensure_future(events_of(slow, known))
    late = asyncio.ensure_future(events_of(slow, known, starting_after=3))
    await asyncio.sleep(0.02)
    await run(slow, 10)
    events = await early
    judge(events)
    assert await late == events[4:]
    for number in (0, 4, len(events) - 2):
        assert await events_of(slow, known, starting_after=number) == events[number + 1 :]
    assert await events_of(slow, known, starting_after=len(events) - 1) == []
    for after in (len(events), 10**6):
        status, answer = await slow.get(f"/v1/responses/{known}?stream=true&starting_after={after}")
        assert (status, answer["error"]["code"]) == (400, "invalid_value")


async def test_a_stream_that_is_cut_goes_on_elsewhere(slow: RunningServer) -> None:
    body = {"input": "x", "background": True, "stream": True}
    async with slow.http.post(slow.url + "/v1/responses", json=body) as answer:
        first = await answer.content.readuntil(b"\n\n")
        while b"response.created" not in first:
            first = await answer.content.readuntil(b"\n\n")
    known = parse_sse(first)[0]["response"]["id"]
    await run(slow, 14)
    await slow.assert_all_streams_ended()
    assert text_of(judge(await events_of(slow, known))) == "one two three"


async def test_it_is_cancelled_by_its_id(slow: RunningServer, client: AsyncOpenAI) -> None:
    known = await begin(slow)
    await run(slow, 3)
    response = await client.responses.cancel(known)
    assert response.status == "cancelled"
    assert response.output_text == "one"
    assert not slow.engine.running
    assert judge(await events_of(slow, known))["status"] == "cancelled"
    assert (await client.responses.cancel(known)).status == "cancelled"


async def test_one_that_is_deleted_stops_and_does_not_come_back(slow: RunningServer, client: AsyncOpenAI) -> None:
    known = await begin(slow)
    await run(slow, 3)
    await client.responses.delete(known)
    await slow.assert_all_streams_ended()
    assert (await slow.get(f"/v1/responses/{known}"))[0] == 404
    assert slow.served.streams.num_streams == 0
    assert slow.served.store.num_records == 0


async def test_what_can_be_refused_at_once_is(slow: RunningServer) -> None:
    status, answer = await slow.post("/v1/responses", {"input": "x" * 900, "background": True})
    assert (status, answer["error"]["param"]) == (400, "input")
    assert slow.served.store.num_records == 0
    assert slow.served.streams.num_streams == 0


async def test_one_that_has_not_ended_cannot_be_followed(slow: RunningServer) -> None:
    known = await begin(slow)
    status, answer = await slow.post("/v1/responses", {"input": "y", "previous_response_id": known})
    assert (status, answer["error"]["code"]) == (400, "response_in_progress")
    await run(slow, 14)


async def test_a_server_that_ends_leaves_it_failed(slow: RunningServer) -> None:
    known = await begin(slow)
    slow.served.start_draining()
    slow.served.abort_all()
    await slow.assert_all_streams_ended()
    await eventually(lambda: not slow.served.streams.get("", known).is_running)
    status, response = await slow.get(f"/v1/responses/{known}")
    assert (status, response["status"], response["error"]["code"]) == (200, "failed", "server_error")
