"""A failure that nobody has foreseen stands in the log once, with its traceback, however many are told of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.startup.logs import set_up_logs
from tests.server.conftest import StartServer
from tests.server.support.socket_client import open_socket, read_to_end, send

RESPONSE = {"input": "ab", "stream": True}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": "ab"}, 500),
        ("/v1/completions", {"prompt": "ab", "stream": True}, 500),
        ("/v1/completions", {"prompt": "ab", "stream": True, "resumable": True}, 500),
        ("/v1/responses", RESPONSE, 500),
        ("/v1/responses", {**RESPONSE, "background": True}, 500),
        ("/v1/stream", {"prompt": "ab", "resumable": True}, None),
    ],
)
async def test_a_failure_is_logged_once(
    start_server: StartServer, capsys: pytest.CaptureFixture[str], path: str, body: dict[str, Any], status: int | None
) -> None:
    set_up_logs("info", "json")
    server = await start_server()

    def crash(*_: object, **__: object) -> None:
        raise KeyError("nobody has foreseen this")

    server.engine.submit = crash  # type: ignore[method-assign]
    if status is None:
        async with open_socket(server) as socket:
            await send(socket, type="generate", id="a", **body)
            assert (await read_to_end(socket, "a"))[-1]["error"]["code"] == "internal_error"
    else:
        async with server.http.post(server.url + path, json=body) as response:
            assert response.status == status
            assert b"internal_error" in await response.read()
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert ["KeyError" in json.dumps(event) for event in events if event["level"] == "error"] == [True]
