"""The caller's trace is taken over, and given back, with and without OpenTelemetry."""

from __future__ import annotations

from typing import Any

import pytest

from server.cli.serve import open_tracing
from server.telemetry import trace_context, tracing
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import StartServer

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [
        (PARENT, TRACE_ID),
        (f" {PARENT} ", TRACE_ID),
        (PARENT.replace("00-", "cc-", 1) + "-more", TRACE_ID),
        (PARENT + "-more", None),  # version 00 has four parts
        (PARENT.replace("00-", "ff-", 1), None),
        (PARENT.upper(), None),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", None),
        (f"00-{TRACE_ID}-{'0' * 16}-01", None),
        ("cc" + PARENT[2:] + "-" + "x" * 600, None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_what_is_no_valid_context_is_none(traceparent: Any, trace_id: str | None) -> None:
    trace_context.take_over(traceparent, "a=b")
    assert trace_context.trace_id() == trace_id
    caller = trace_context.caller()
    assert (caller.tracestate if caller else None) == ("a=b" if trace_id else None)


def test_a_message_without_fields_stays_in_the_trace_of_its_socket() -> None:
    trace_context.take_over(PARENT)
    trace_context.take_from({})
    assert trace_context.trace_id() == TRACE_ID
    body = {"traceparent": PARENT.replace("0af", "1af"), "tracestate": "x=y", "prompt": "a"}
    trace_context.take_from(body)
    assert trace_context.trace_id() == TRACE_ID.replace("0af", "1af")
    assert body == {"prompt": "a"}


async def test_answers_name_the_trace_of_their_request_alone(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient())
    body = {"prompt": "abc", "max_tokens": 2}
    for headers, trace_id in (({"traceparent": PARENT}, TRACE_ID), ({}, None), ({"traceparent": "no"}, None)):
        async with server.http.post(server.url + "/v1/completions", json=body, headers=headers) as response:
            assert (response.status, response.headers.get("X-Trace-Id")) == (200, trace_id)
    async with server.http.ws_connect(server.url + "/v1/stream", headers={"traceparent": PARENT}) as socket:
        for fields, trace_id in (({}, TRACE_ID), ({"traceparent": PARENT.replace("0af", "1af")}, "1" + TRACE_ID[1:])):
            await socket.send_json({"type": "generate", "id": "a", **body, **fields})
            assert (await socket.receive_json())["trace_id"] == trace_id
            while (await socket.receive_json())["type"] != "done":
                pass


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SERVICE_NAME": "tides"},
    ],
)
def test_it_is_off_where_nobody_asks_for_it(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_exporter", lambda *_: pytest.fail("nothing may be imported"))
    assert open_tracing(environ) is None


@pytest.mark.parametrize(
    ("environ", "error", "reason"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, None, "OTEL_TRACES_EXPORTER is 'zipkin'"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            None,
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'",
        ),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "x"},
            ModuleNotFoundError("", name="opentelemetry"),
            "opentelemetry is not installed",
        ),
    ],
)
def test_the_log_says_why_it_is_off(
    environ: dict[str, str], error: Exception | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(tracing.log, "error", lambda event, **fields: said.append({"event": event, **fields}))
    if error is not None:

        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(tracing, "_exporter", fail)
    assert open_tracing(environ) is None
    (event,) = said
    assert event["event"] == "tracing_off"
    assert reason in event["reason"]
