"""Errors have the shape of the route that they happen on, before a stream's headers and after them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from server.api.framing import Framing
from server.api.openai.completions import CompletionCall
from server.api.route import BodyRoute
from server.http import app as application
from server.http.table import ROUTES
from server.protocol.errors import ApiError
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import StartServer, eventually

PATH = "/v1/strange"


def shape_strangely(error: ApiError, _request_id: str) -> dict[str, Any]:
    return {"type": "error", "what": error.type, "why": error.message}


@pytest.fixture(autouse=True)
def strange_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more route, whose errors and framing are like no other's."""
    framing = Framing(
        before=b"event: piece\ndata: ", after=b"\n\n", opening=b"event: ping\n\n", done=b"event: over\n\n"
    )
    route = BodyRoute(PATH, CompletionCall.parse, shape_strangely, framing)
    monkeypatch.setattr(application, "ROUTES", (*ROUTES, route))


async def test_a_refusal_has_the_shape_of_its_route(start_server: StartServer) -> None:
    server = await start_server()
    status, body = await server.post(PATH, {"prompt": "a", "temperature": 3})
    assert status == 400
    assert body == {
        "type": "error",
        "what": "invalid_request_error",
        "why": "temperature is 3.0; it must be from 0 to 2",
    }
    assert (await server.post_raw(PATH, b""))[1]["why"] == "the body is empty; it must be a JSON object"
    assert (await server.post("/v1/completions", {}))[1]["error"]["param"] == "prompt"


async def test_a_path_that_is_nobodys_has_openais_shape(start_server: StartServer) -> None:
    server = await start_server()
    status, body = await server.get("/v1/strange/thing")
    assert (status, body["error"]["code"]) == (404, "unknown_url")
    status, body = await server.get(PATH)
    assert (status, body["what"]) == (405, "invalid_request_error")


async def test_a_stream_has_the_framing_and_the_errors_of_its_route(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with server.http.post(server.url + PATH, json={"prompt": "ab", "stream": True}) as response:
        await eventually(lambda: bool(engine.running))
        engine.step()
        data = await response.content.readuntil(b"data: ")
        data += await response.content.readuntil(b"\n\n")
        engine.fail("the device is gone")
        data += await response.content.read()
    ping, piece, error = data.split(b"\n\n", 2)
    assert ping == b"event: ping"
    assert orjson.loads(piece.removeprefix(b"event: piece\ndata: "))["choices"][0]["text"] == "a"
    assert error == b'event: piece\ndata: {"type":"error","what":"server_error","why":"the device is gone"}\n\n'


async def test_a_handler_that_fails_keeps_its_details_to_the_log(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> list[int]:
        raise ZeroDivisionError("a secret")

    server = await start_server(FakeEngineClient(respond=crash))
    status, body = await server.post(PATH, {"prompt": "a"})
    assert (status, body["why"]) == (500, "the server failed to handle this request")
