"""The spans that requests leave, as the library's in-memory exporter sees them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk.trace", reason="the extra `otel` is not installed")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from server.generation.generation_request import GenerationRequest
from server.generation.prompt_sources import Conversation
from server.telemetry.message_content import MAX_CHARS, input_messages
from server.telemetry.tracing import Tracing
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.support.sse_reader import chunks_of
from tests.server.telemetry.test_trace_context import PARENT, TRACE_ID

BODY = {"prompt": "abc", "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 4}


# What the conventions do not have among the attributes of spans: vLLM's names, and those of their own metrics.
OTHERS_NAMES = ("gen_ai.request.id", "gen_ai.latency.", "gen_ai.server.")


def own_names(span: Any) -> set[str]:
    """The names of a span that are to be those of the conventions."""
    return {name for name in span.attributes if name.startswith("gen_ai.") and not name.startswith(OTHERS_NAMES)}


def known_names() -> set[str]:
    """The names of the conventions that the library brings."""
    return {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}


class Traced:
    """A server that traces into memory."""

    def __init__(self, server: RunningServer, exporter: InMemorySpanExporter) -> None:
        self.server = server
        self.exporter = exporter

    async def spans(self, num_spans: int) -> dict[str, Any]:
        """All spans by name, once there are so many."""
        await eventually(lambda: len(self.exporter.get_finished_spans()) >= num_spans)
        spans = self.exporter.get_finished_spans()
        assert len(spans) == num_spans
        return {span.name: span for span in spans}


async def start(start_server: StartServer, engine: FakeEngineClient, *, captures_content: bool = False) -> Traced:
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    server = await start_server(engine)
    server.served.tracing = Tracing(provider, captures_content=captures_content)
    return Traced(server, exporter)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_a_span_with_its_parts_below(start_server: StartServer, stream: bool) -> None:
    traced = await start(start_server, FakeEngineClient())
    headers = {"traceparent": PARENT, "tracestate": "tide=high", "X-Request-Id": "mine"}
    url = traced.server.url + "/v1/completions"
    async with traced.server.http.post(url, json={**BODY, "stream": stream}, headers=headers) as response:
        assert response.headers["X-Trace-Id"] == TRACE_ID
        await response.read()
    spans = await traced.spans(4)
    span = spans["text_completion fake"]
    assert (span.kind, f"{span.context.trace_id:032x}") == (SpanKind.SERVER, TRACE_ID)
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert span.context.trace_state.get("tide") == "high"
    wanted = {
        "gen_ai.operation.name": "text_completion", "gen_ai.request.model": "fake", "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 0.9, "gen_ai.request.seed": 4,
        "gen_ai.request.stream": stream,
        "gen_ai.response.id": "mine", "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 3,
    }  # fmt: skip
    assert {name: span.attributes[name] for name in wanted} == wanted
    assert 0 < span.attributes["gen_ai.server.time_to_first_token"] <= span.attributes["gen_ai.latency.e2e"]
    first_chunk = span.attributes["gen_ai.server.time_to_first_token"] if stream else None
    assert span.attributes.get("gen_ai.response.time_to_first_chunk") == first_chunk
    assert span.status.status_code is StatusCode.UNSET
    parts = [spans[name] for name in ("queue", "prompt", "tokens")]
    assert {part.parent.span_id for part in parts} == {span.context.span_id}
    times = [time for part in parts for time in (part.start_time, part.end_time)]
    assert times == sorted(times)
    assert not any("message" in name for name in span.attributes)
    assert own_names(span) <= known_names()


async def test_a_trace_begins_here_where_the_caller_has_none(start_server: StartServer) -> None:
    traced = await start(start_server, FakeEngineClient())
    async with traced.server.http.ws_connect(traced.server.url + "/v1/stream") as socket:
        ids = []
        for name in "ab":
            await socket.send_json({"type": "generate", "id": name, **BODY, "n": 2})
            ids.append((await socket.receive_json())["trace_id"])
            while (await socket.receive_json())["type"] != "done":
                pass
    await eventually(lambda: len(traced.exporter.get_finished_spans()) == 2)  # two answers have no parts
    spans = traced.exporter.get_finished_spans()
    assert [f"{span.context.trace_id:032x}" for span in spans] == ids
    assert len(set(ids)) == 2
    assert spans[0].attributes["gen_ai.response.finish_reasons"] == ("length", "length")


async def test_a_failure_has_its_kind_and_no_words_of_the_client(start_server: StartServer) -> None:
    traced = await start(start_server, FakeEngineClient())
    status, _ = await traced.server.post(
        "/v1/completions", {**BODY, "max_tokens": 1 << 63, "prompt": "secret words", "stop": "secret"}
    )
    assert status == 400
    (span,) = (await traced.spans(1)).values()
    assert "gen_ai.request.max_tokens" not in span.attributes, "what no span can carry would cost its batch the export"
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"]
    assert "secret" not in span.to_json()


@pytest.mark.parametrize("stream", [False, True])
async def test_texts_are_in_spans_only_where_they_are_wanted(start_server: StartServer, stream: bool) -> None:
    traced = await start(start_server, FakeEngineClient(), captures_content=True)
    messages = [{"role": "user", "content": [{"type": "text", "text": "tides"}]}]
    body = {"messages": messages, "max_tokens": 9, "stop": ["never"]}
    if stream:
        chunks = chunks_of(await traced.server.stream_bytes("/v1/chat/completions", body))
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    else:
        text = (await traced.server.post("/v1/chat/completions", body))[1]["choices"][0]["message"]["content"]
    assert len(text) == 9
    span = (await traced.spans(4))["chat fake"]
    said = json.loads(span.attributes["gen_ai.input.messages"])
    assert said == [{"role": "user", "parts": [{"type": "text", "content": "tides"}]}]
    assert span.attributes["gen_ai.request.stop_sequences"] == ("never",)
    (given,) = json.loads(span.attributes["gen_ai.output.messages"])
    assert given["parts"][0]["content"] == text
    assert given["finish_reason"] == "length"
    assert own_names(span) <= known_names()


def test_texts_in_a_span_have_a_limit_and_so_has_their_number() -> None:
    messages = [{"role": "user", "content": "x" * MAX_CHARS}, *([{"role": "user", "content": ""}] * 1000)]
    assert len(json.loads(input_messages(GenerationRequest([Conversation(messages)], {})))) == 1


async def test_a_client_that_leaves_ends_its_span(start_server: StartServer) -> None:
    traced = await start(start_server, FakeEngineClient(is_manual=True))
    asking = asyncio.create_task(traced.server.post("/v1/completions", BODY))
    await eventually(lambda: bool(traced.server.engine.running))
    asking.cancel()
    await traced.spans(1)
