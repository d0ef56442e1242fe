"""The last requests of all clients, as the administrator sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from server.startup.settings import ServerSettings, SettingsError
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer, eventually

ADMIN = {"Authorization": "Bearer admin-secret"}
SETTINGS: dict[str, Any] = {"admin_keys": ("admin-secret",), "inspect_requests": True}


async def ask(server: RunningServer, path: str) -> tuple[int, Any]:
    async with server.http.get(server.url + path, headers=ADMIN) as response:
        return response.status, await response.json()


async def test_a_running_a_finished_and_a_refused_request(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, **SETTINGS)
    body = {"prompt": "abcdef", "max_tokens": 4, "temperature": 0.5, "request_id": "mine", "n": 2}
    running = asyncio.create_task(server.post("/v1/completions", body))
    await eventually(lambda: len(engine.running) == 2)
    engine.step(2)
    await eventually(lambda: server.served.request_log is not None and server.served.num_generations == 1)
    while (await ask(server, "/v1/requests"))[1]["data"][0]["num_output_tokens"] < 4:
        await asyncio.sleep(0)
    _, listed = await ask(server, "/v1/requests")
    (entry,) = listed["data"]
    assert (entry["id"], entry["state"], entry["num_prompt_tokens"]) == ("mine", "answering", 6)
    engine.step(2)
    assert (await running)[0] == 200
    status, whole = await ask(server, "/v1/requests/mine")
    assert (status, whole["state"], whole["finish_reasons"]) == (200, "done", ["length", "length"])
    assert whole["request"] == {
        "prompts": [{"prompt": "abcdef"}],
        "parameters": {"temperature": 0.5, "max_tokens": 4, "n": 2},
    }
    assert (whole["sampling"]["temperature"], whole["sampling"]["max_tokens"]) == (0.5, 4)
    (prompt,) = whole["prompts"]
    assert ("".join(prompt["token_texts"]), prompt["token_ids"]) == ("abcdef", list(b"abcdef"))
    for answer in whole["answers"]:
        assert ("".join(answer["token_texts"]), answer["text"]) == ("abcd", "abcd")
        times, counts = zip(*answer["events"], strict=True)
        assert sum(counts) == 4
        assert sorted(times) == list(times)
        assert whole["queue_ms"] <= whole["first_token_ms"] <= times[-1] <= whole["duration_ms"]

    assert (await server.post("/v1/completions", {"prompt": "abc", "temperature": -1}))[0] == 400
    assert (await server.post("/v1/completions", {"prompt": "abc", "top_p": 7}))[0] == 400
    _, listed = await ask(server, "/v1/requests?limit=2")
    assert [entry["state"] for entry in listed["data"]] == ["refused", "refused"]
    assert all(entry["error"]["message"] for entry in listed["data"])
    assert listed["has_more"]
    _, rest = await ask(server, f"/v1/requests?before={listed['data'][-1]['number']}")
    assert ([entry["id"] for entry in rest["data"]], rest["has_more"]) == (["mine"], False)


async def test_every_route_is_seen_and_a_client_that_leaves(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, **SETTINGS)
    messages = [{"role": "user", "content": "hi"}]
    asking = asyncio.create_task(server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 3}))
    await eventually(lambda: len(engine.running) == 1)
    asking.cancel()
    await server.assert_all_streams_ended()
    await eventually(lambda: len(server.served.request_log or ()) == 1)
    _, listed = await ask(server, "/v1/requests")
    assert listed["data"][0]["state"] == "left"
    _, whole = await ask(server, f"/v1/requests/{listed['data'][0]['id']}")
    assert whole["request"]["prompts"] == [{"messages": messages}]

    async with server.http.ws_connect(server.url + "/v1/stream") as socket:
        await socket.send_json({"type": "generate", "id": "a", "prompt": "abc", "max_tokens": 1, "resumable": True})
        await eventually(lambda: len(engine.running) == 1)
        engine.step()
        while (await socket.receive_json())["type"] != "done":
            pass
    _, listed = await ask(server, "/v1/requests?limit=1")
    assert (listed["data"][0]["state"], listed["data"][0]["num_output_tokens"]) == ("done", 1)


async def test_the_administrator_alone_may_look_and_only_where_requests_are_kept(start_server: StartServer) -> None:
    kept = await start_server(**SETTINGS, api_keys=("key-of-ann ann",))
    ann = {"Authorization": "Bearer key-of-ann"}
    for path in ("/v1/requests", "/v1/requests/x"):
        for headers, status in (({}, 401), (ann, 403), (ADMIN, 200 if path == "/v1/requests" else 404)):
            async with kept.http.get(kept.url + path, headers=headers) as response:
                assert response.status == status
            async with kept.http.head(kept.url + path, headers=headers) as response:
                assert response.status == status
    async with kept.http.delete(kept.url + "/v1/requests/x", headers=ann) as response:
        assert (await response.json())["error"]["code"] == "unknown_request"
    async with aiohttp.ClientSession() as stranger, stranger.post(kept.url + "/v1/completions", json={}) as response:
        assert response.status == 401
    assert (await ask(kept, "/v1/requests"))[1]["data"] == [], "who is not let in takes no room"
    for query in ("limit=0", "limit=201", "limit=x", "before=-1", "limit=" + "9" * 5000):
        status, answer = await ask(kept, f"/v1/requests?{query}")
        assert (status, answer["error"]["param"]) == (400, query.partition("=")[0])

    off = await start_server(admin_keys=("admin-secret",))
    assert off.served.request_log is None
    status, answer = await ask(off, "/v1/requests")
    assert (status, answer["error"]["code"]) == (404, "inspector_off")
    assert (await (await start_server()).get("/v1/requests"))[1]["error"]["code"] == "admin_off"


def test_without_an_administrator_nobody_could_look() -> None:
    with pytest.raises(SettingsError, match="admin_key is missing"):
        ServerSettings(inspect_requests=True)
