"""The status in the access log is that of the response, unless the client has left before it was whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog
from aiohttp import web
from structlog.testing import LogCapture

from server.admission.guard import Guard
from server.admission.loop_throttle import LoopThrottle
from server.cli.listeners import start_sites
from server.http.entry.access_log import add_headers
from server.http.entry.error_answers import ERROR_SHAPES, GENERATING
from server.http.entry.guard import GUARD, SOCKET_ROUTES
from server.http.entry.middleware import enter
from server.http.transport.connections import TURNS, GuardedRunner
from server.startup.settings import ServerSettings
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually


@pytest.mark.parametrize(("kind", "status"), [("whole", 201), ("stream", 201), ("broken stream", 499)])
async def test_a_client_that_closes_once_it_has_the_whole_answer_has_not_left(kind: str, status: int) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.Response(text="tide", status=201) if kind == "whole" else web.StreamResponse(status=201)
        await response.prepare(request)
        if kind != "whole":
            await response.write(b"tide")
        if kind != "broken stream":
            await response.write_eof()
        await asyncio.sleep(PATIENCE_S)  # what a handler still has to do; it is cancelled
        return response

    app = web.Application(middlewares=[enter])
    app[GUARD], app[TURNS], app[ERROR_SHAPES] = Guard(None, None, ()), LoopThrottle(), {}
    app[SOCKET_ROUTES] = app[GENERATING] = frozenset()
    app.on_response_prepare.append(add_headers)
    app.router.add_get("/", handle)
    runner = GuardedRunner(app, ServerSettings(host="127.0.0.1", port=0))
    await runner.setup()
    capture, before = LogCapture(), structlog.get_config()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, capture])
    try:
        await start_sites(runner, ["127.0.0.1"], 0)
        reader, writer = await asyncio.open_connection(*runner.addresses[0])
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"tide"), PATIENCE_S)
        writer.close()

        def events() -> list[Any]:
            return [event for event in capture.entries if event["event"] == "access"]

        await eventually(lambda: bool(events()))
        assert [event["status"] for event in events()] == [status]
    finally:
        structlog.configure(**before)
        await runner.cleanup()
