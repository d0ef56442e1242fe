"""The stream that tells what the engine does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest

from server.http import engine_events
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually

KEYS = {"api_keys": ("key-of-ann ann", "key-of-ben ben"), "admin_keys": ("admin-secret",)}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_events, "INTERVAL_S", 0.001)
    monkeypatch.setattr(engine_events, "MOST_SHARE", 1.0)


def keyed(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


@asynccontextmanager
async def following(server: RunningServer, key: str | None = None) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    async with server.http.get(server.url + engine_events.PATH, headers=keyed(key)) as response:
        assert response.status == 200, await response.text()
        yield read(response)


async def read(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.startswith(b"data: "):
            yield orjson.loads(line[6:])


async def test_events_follow_the_requests(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with following(server) as events:
        idle = await anext(events)
        assert (idle["state"], idle["slots"], idle["steps"]) == ("ready", [], [])
        body = {"prompt": "abcdefgh", "max_tokens": 4, "request_id": "mine"}
        asking = asyncio.create_task(server.post("/v1/completions", body))
        await eventually(lambda: bool(engine.running))
        engine.step(2)
        event = await anext(event async for event in events if event["slots"] and event["slots"][0]["output"] == 2)
        assert event["slots"][0]["state"] == "answer"
        assert event["slots"][0]["prompt"] == 8
        assert event["steps"][0][0] == 2
        assert (await anext(events))["steps"] == [], "a step is told once"
        engine.step(2)
        assert (await asking)[0] == 200


async def test_ids_are_told_to_their_owners_and_to_the_administrator(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, **KEYS)
    async with server.http.get(server.url + engine_events.PATH) as response:
        assert response.status == 401

    async def ask() -> None:
        headers = {**keyed("key-of-ann"), "X-Request-Id": "anns"}
        await server.http.post(f"{server.url}/v1/completions", json={"prompt": "ab", "max_tokens": 1}, headers=headers)

    asking = asyncio.create_task(ask())
    await eventually(lambda: bool(engine.running))
    for key, seen in (("key-of-ann", "anns"), ("key-of-ben", None), ("admin-secret", "anns")):
        async with following(server, key) as events:
            assert [slot["id"] for slot in (await anext(events))["slots"]] == [seen]
    engine.step()
    await asking


async def test_readers_are_few_and_leave_nothing(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_events, "MAX_READERS", 1)
    server = await start_server()
    async with following(server) as events:
        await anext(events)
        status, body = await server.get(engine_events.PATH)
        assert (status, body["error"]["code"]) == (429, "too_many_readers")
    await eventually(lambda: server.app[engine_events.READERS].total == 0)


async def test_one_key_leaves_readers_to_others(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_events, "MAX_READERS", 2)
    server = await start_server(**KEYS)
    async with following(server, "key-of-ann") as anns:
        await anext(anns)
        url = server.url + engine_events.PATH
        async with server.http.get(url, headers=keyed("key-of-ann")) as response:
            assert response.status == 429
            message = (await response.json())["error"]["message"]
            assert (
                message == "1 readers follow the engine already, 1 with this key, which may have half of what "
                "others leave; the limit is 2"
            )
        async with following(server, "key-of-ben") as bens:
            await anext(bens)


async def test_the_stream_ends_when_the_server_drains(start_server: StartServer) -> None:
    server = await start_server()
    async with following(server) as events:
        await anext(events)
        server.served.start_draining()
        async with asyncio.timeout(PATIENCE_S):
            async for _ in events:
                pass  # until the server ends it
    await eventually(lambda: server.app[engine_events.READERS].total == 0)


async def test_where_figures_have_a_port_of_their_own_the_stream_is_the_administrators(
    start_server: StartServer,
) -> None:
    server = await start_server(metrics_port=0, **KEYS)
    async with server.http.get(server.url + engine_events.PATH, headers=keyed("key-of-ann")) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (403, "not_admin")
    async with following(server, "admin-secret") as events:
        await anext(events)


async def test_an_unknown_model_and_one_that_is_not_loaded_are_refused(start_server: StartServer) -> None:
    server = await start_server(is_open=False)
    assert (await server.get(engine_events.PATH))[0] == 503
    assert (await server.get(engine_events.PATH + "?model=x"))[0] == 404
