"""Access events, and the traceback of failures."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import structlog
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage
from structlog.testing import LogCapture

from server.startup.logs import log, set_up_logs
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import StartServer, eventually


@pytest.fixture
def events() -> Any:
    """Events as dictionaries with the fields of contextvars, which `capture_logs` of structlog leaves out."""
    capture = LogCapture()
    before = structlog.get_config()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, capture])
    yield capture.entries
    structlog.configure(**before)


def access(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "access"]


async def test_an_access_event_has_all_fields(start_server: StartServer, events: list[dict[str, Any]]) -> None:
    server = await start_server()
    headers = {"X-Request-Id": "abc-1"}
    async with server.http.post(server.url + "/v1/completions", json={"prompt": "ab"}, headers=headers) as response:
        assert response.headers["X-Request-Id"] == "abc-1"
        assert (await response.json())["id"] == "cmpl-abc-1"
    await eventually(lambda: len(access(events)) == 1)
    (event,) = access(events)
    assert event.pop("duration") >= event.pop("ttft") > 0
    assert event == {
        "event": "access",
        "log_level": "info",
        "request_id": "abc-1",
        "method": "POST",
        "route": "/v1/completions",
        "status": 200,
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "finish_reason": "stop",
    }


async def test_fields_of_a_request_are_not_kept_for_the_next_one(
    start_server: StartServer, events: list[dict[str, Any]]
) -> None:
    server = await start_server()
    await server.post("/v1/completions", {"prompt": "ab"})
    await server.post("/v1/completions", {"prompt": ""})
    first, second = access(events)
    assert first["request_id"] != second["request_id"]
    assert second["status"] == 400
    assert "prompt_tokens" not in second


async def test_a_client_that_left_is_499(start_server: StartServer, events: list[dict[str, Any]]) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    asking = asyncio.create_task(server.post("/v1/completions", {"prompt": "ab"}))
    await eventually(lambda: len(engine.running) == 1)
    asking.cancel()
    await eventually(lambda: len(access(events)) == 1)
    assert access(events)[0]["status"] == 499


@pytest.mark.parametrize(
    ("error", "is_written"),
    [
        (ConnectionResetError("gone"), False),
        (BadHttpMessage("no HTTP"), False),
        (web.RequestPayloadError("no gzip"), False),
        (LookupError("ours"), True),
    ],
)
def test_failures_caused_by_clients_leave_no_traceback(
    error: Exception, is_written: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logs("info", "console")
    try:
        logging.getLogger("aiohttp.server").error("Error handling request", exc_info=error)
    finally:
        structlog.reset_defaults()
    assert ("Error handling request" in capsys.readouterr().err) is is_written


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_an_error_does_not_show_local_variables(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "-".join(["a", "secret", "prompt"])  # so that no line of source has it

    def fail(_prompt: str) -> None:
        raise LookupError("ours")

    set_up_logs("info", log_format)
    try:
        try:
            fail(secret)
        except LookupError as error:
            log.error("request_failed", exc_info=error)
            logging.getLogger("aiohttp.server").error("Error handling request", exc_info=error)
    finally:
        structlog.reset_defaults()
    written = capsys.readouterr().err
    assert written.count("LookupError") >= 2
    assert secret not in written


@pytest.mark.parametrize("log_format", ["console", "json"])
@pytest.mark.parametrize("bad", ["\x1b[2J", "\r", "\x00", "\x9b31m", "\x7f", "\u202e", "\n2026-01-01 [info] forged"])
def test_control_bytes_of_clients_are_escaped(log_format: str, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("info", log_format)
    try:
        log.info("access", route=bad, of={"nested": bad})
        logging.getLogger("aiohttp.server").error("bad request %s", bad)
        try:
            raise ValueError(bad)
        except ValueError as error:
            log.error("failed", exc_info=error)
    finally:
        structlog.reset_defaults()
    written = capsys.readouterr().err
    assert written.count("access") == 1
    if not bad.startswith("\n"):
        assert bad not in written
    else:
        assert not any(line.startswith("2026-01-01") for line in written.splitlines()[:2])
