"""Parameters that mean nothing to the server, as its clients and its log see them."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from server.protocol.errors import UnknownField
from server.serving.ignored_parameters import IgnoredParameters
from tests.server.conftest import StartServer
from tests.server.support.socket_client import open_socket, receive, send

PATHS = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_names_what_was_ignored(start_server: StartServer, path: str, stream: bool) -> None:
    server = await start_server()
    body = {**PATHS[path], "stream": stream, "colour": 1, "ä\r\nb": 2, "none": None}
    async with server.http.post(server.url + path, json=body) as response:
        await response.read()
        assert response.status == 200
        assert response.headers["X-Eagre-Ignored"] == "colour, %C3%A4%0D%0Ab"
    async with server.http.post(server.url + path, json=PATHS[path]) as response:
        assert "X-Eagre-Ignored" not in response.headers


async def test_a_socket_tells_it_at_the_start(start_server: StartServer) -> None:
    server = await start_server()
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="x", prompt="a", colour=1)
        assert (await receive(socket))["ignored"] == ["colour"]


async def test_a_strict_server_refuses_it(start_server: StartServer) -> None:
    server = await start_server(strict_parameters=True)
    for path, body in PATHS.items():
        status, answer = await server.post(path, {**body, "colour": 1})
        assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, "colour", "unknown_parameter")
        status, _ = await server.post(path, {**body, "colour": None, "skip_special_tokens": True})
        assert status == 200
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="x", prompt="a", colour=1)
        assert (await receive(socket))["error"]["param"] == "colour"


def test_the_log_tells_each_name_once() -> None:
    ignored = IgnoredParameters(is_strict=False)
    with capture_logs() as logs:
        ignored.tell(["a", "b"])
        ignored.tell(["b", "c"])
        ignored.tell([f"k{n}" for n in range(1000)])
    assert [event["param"] for event in logs[:3]] == ["a", "b", "c"]
    assert len(logs) == 256
    with pytest.raises(UnknownField):
        IgnoredParameters(is_strict=True).tell(["a"])
