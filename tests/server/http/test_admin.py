"""What an operator can ask of a running server."""

from __future__ import annotations

from typing import Any

import pytest

from engine.interface.errors import ModelError
from engine.interface.types import EngineBusy
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer

ADMIN = "admin-secret-3"
HEADERS = {"Authorization": f"Bearer {ADMIN}"}


async def post(server: RunningServer, name: str, body: Any = None) -> tuple[int, Any]:
    async with server.http.post(f"{server.url}/admin/{name}", headers=HEADERS, json=body) as response:
        return response.status, await response.json()


async def test_a_model_that_sleeps_is_listed_in_llama_cpps_words(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, admin_keys=(ADMIN,))
    assert await post(server, "sleep") == (200, {"state": "asleep"})
    for has_weights, value in ((True, "sleeping"), (False, "unloaded")):
        engine.lifecycle.has_weights = has_weights
        assert (await server.get("/v1/models"))[1]["data"][0]["status"] == {"value": value}


async def test_the_lifecycle(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, admin_keys=(ADMIN,))
    assert await post(server, "pause") == (200, {"state": "paused"})
    status, body = await server.get("/readiness")
    assert (status, body["detail"]) == (200, "requests are accepted; they wait, because the engine is paused")
    assert await post(server, "resume", {}) == (200, {"state": "running"})
    assert await post(server, "sleep", {"drop_weights": True}) == (200, {"state": "asleep"})
    status, body = await post(server, "resume")
    assert (status, body["error"]["code"]) == (409, "engine_busy")
    assert "must be woken" in body["error"]["message"]
    assert await post(server, "wake") == (200, {"state": "running"})
    assert await post(server, "reset_prefix_cache") == (200, {"is_reset": True})
    assert await post(server, "update_weights", {"path": "/m.gguf", "drain": True}) == (
        200,
        {"path": "/m.gguf", "state": "running"},
    )
    assert engine.lifecycle.calls == [
        "pause", "resume", ("sleep", True), "wake", "reset_prefix_cache", ("update_weights", "/m.gguf", True),
    ]  # fmt: skip


async def test_refusals_say_why(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, admin_keys=(ADMIN,))
    engine.lifecycle.is_holding_pages = True
    assert (await post(server, "reset_prefix_cache"))[0] == 409
    for error, status in ((EngineBusy("3 requests have begun"), 409), (ModelError("m.gguf is of another shape"), 400)):
        engine.lifecycle.error = error
        answer = await post(server, "update_weights", {"path": "m.gguf"})
        assert answer[0] == status
        assert str(error) in answer[1]["error"]["message"]


@pytest.mark.parametrize(
    ("name", "body", "param"),
    [
        ("pause", {"hard": True}, "hard"),
        ("sleep", {"drop_weights": 1}, "drop_weights"),
        ("update_weights", {}, "path"),
        ("update_weights", {"path": ""}, "path"),
        ("abort", {"request_id": 5}, "request_id"),
    ],
)
async def test_bad_bodies_are_named(start_server: StartServer, name: str, body: Any, param: str) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, admin_keys=(ADMIN,))
    status, answer = await post(server, name, body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert engine.lifecycle.calls == []


async def test_the_trace_is_a_file_for_perfetto(start_server: StartServer) -> None:
    server = await start_server(admin_keys=(ADMIN,))
    async with server.http.get(f"{server.url}/admin/trace?steps=7", headers=HEADERS) as response:
        assert (await response.json())["traceEvents"][0]["args"] == {"steps": 7}
    for steps in ("0", "x", "99999999999999", "-1"):
        async with server.http.get(f"{server.url}/admin/trace", headers=HEADERS, params={"steps": steps}) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, "steps")


async def test_a_model_that_still_loads_has_no_lifecycle(start_server: StartServer) -> None:
    server = await start_server(admin_keys=(ADMIN,), is_open=False)
    assert (await post(server, "pause"))[0] == 503
