"""Generations that are ended by their ids."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.support.socket_client import open_socket, read_to_end, receive, send

ALICE, BOB, ADMIN = "alice-secret-1", "bob-secret-22", "admin-secret-3"


async def ask(server: RunningServer, method: str, path: str, key: str, body: Any = None) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    async with server.http.request(method, server.url + path, headers=headers, json=body) as response:
        return response.status, await response.json()


async def stream(server: RunningServer, key: str, **body: Any) -> tuple[str, list[str]]:
    """The X-Request-Id of an answer, and its data lines."""
    headers = {"Authorization": f"Bearer {key}"}
    whole = {"prompt": "abcdef", "stream": True, **body}
    async with server.http.post(server.url + "/v1/completions", headers=headers, json=whole) as response:
        text = await response.text()
        return response.headers["X-Request-Id"], [line[6:] for line in text.split("\n") if line.startswith("data: ")]


async def test_a_stream_ends_with_abort_for_the_key_that_made_it(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, api_keys=(ALICE, BOB))
    streaming = asyncio.create_task(stream(server, ALICE, request_id="mine", n=2))
    await eventually(lambda: len(engine.running) == 2)
    engine.step()
    for method, path in (("POST", "/v1/requests/mine/cancel"), ("DELETE", "/v1/requests/mine")):
        status, body = await ask(server, method, path, BOB)
        assert (status, body["error"]["code"]) == (404, "unknown_request")
    assert len(engine.running) == 2
    answer = {"id": "mine", "object": "request.cancellation", "cancelled": True}
    assert await ask(server, "POST", "/v1/requests/mine/cancel", ALICE) == (200, answer)
    header_id, lines = await streaming
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert reasons == ["abort", "abort"]
    for name in ("mine", header_id):  # again, by both of its names
        assert (await ask(server, "DELETE", f"/v1/requests/{name}", ALICE))[1]["cancelled"] is True


async def test_whole_answers_and_those_that_have_ended(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, api_keys=(ALICE,))
    body = {"prompt": "abcdef", "request_id": "whole"}
    asking = asyncio.create_task(ask(server, "POST", "/v1/completions", ALICE, body))
    await eventually(lambda: bool(engine.running))
    assert (await ask(server, "DELETE", "/v1/requests/whole", ALICE))[0] == 200
    status, answer = await asking
    assert (status, answer["choices"][0]["finish_reason"]) == (200, "abort")
    engine.is_manual = False
    asking = asyncio.create_task(ask(server, "POST", "/v1/completions", ALICE, {**body, "request_id": "done"}))
    await eventually(lambda: bool(engine.running))
    engine.step(7)
    assert (await asking)[0] == 200
    assert await ask(server, "DELETE", "/v1/requests/done", ALICE) == (
        200,
        {"id": "done", "object": "request.cancellation", "cancelled": False},
    )
    assert (await ask(server, "DELETE", "/v1/requests/never", ALICE))[0] == 404


async def test_streams_of_a_socket_have_ids_too_and_the_operator_may_end_any(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, api_keys=(ALICE,), admin_keys=(ADMIN,))
    async with open_socket(server, additional_headers={"Authorization": f"Bearer {ALICE}"}) as socket:
        await send(socket, type="generate", id="a", prompt="abc")
        stream_id = (await receive(socket))["stream_id"]
        assert (await ask(server, "POST", f"/v1/requests/{stream_id}/cancel", ALICE))[0] == 200
        assert (await read_to_end(socket, "a"))[-1]["finish_reason"] == "abort"
        await send(socket, type="generate", id="b", prompt="abc", request_id="second")
        await receive(socket)
        assert await ask(server, "POST", "/admin/abort", ADMIN, {"request_id": "second"}) == (
            200,
            {"request_id": "second", "num_aborted": 1},
        )
        assert (await read_to_end(socket, "b"))[-1]["finish_reason"] == "abort"
    assert (await ask(server, "POST", "/admin/abort", ADMIN, {"request_id": "second"}))[0] == 404
