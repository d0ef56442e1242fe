"""Requests that clients send and that other servers have been reported to refuse, or to answer wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.server.conftest import RunningServer, StartServer
from tests.server.support.sse_reader import chunks_of

HI = {"role": "user", "content": "Hi"}
CHAT, LLAMA, RESPONSES, MESSAGES, OLLAMA = (
    "/v1/chat/completions", "/chat/completions", "/v1/responses", "/v1/messages", "/api/chat",
)  # fmt: skip
PLAIN: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [HI]},
    LLAMA: {"messages": [HI]},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"messages": [HI], "max_tokens": 50},
    OLLAMA: {"model": "fake", "messages": [HI], "stream": False},
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOL = {"type": "function", "function": WEATHER}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]}
USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Read", "input": {}}]}
ANTHROPIC_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}


def function(**more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **more}}


def saying(text: str) -> Callable[..., list[int]]:
    return lambda *_: list(text.encode())


TAKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "items without a type": (RESPONSES, {"input": [{"role": "assistant", "content": "A"}, HI]}),
    "an answer's item without id and status": (RESPONSES, {"input": [HI, SAID, HI]}),
    "what one client sends with each request": (
        RESPONSES,
        {"input": [HI], "instructions": "", "store": False, "truncation": "auto", "parallel_tool_calls": True,
         "user": "me", "service_tier": "auto"},
    ),
    "an item that only a maker's server makes": (
        RESPONSES, {"input": [{"type": "computer_call_output", "call_id": "c", "output": {"type": "x"}}, HI]}
    ),
    "a picture in a call's output": (
        RESPONSES,
        {"input": [
            HI, {"type": "function_call", "call_id": "c", "name": "view", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c",
             "output": [{"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}]},
        ]},
    ),
    "a developer behind the user": (RESPONSES, {"input": [HI, {"role": "developer", "content": "Be brief."}]}),
    "a field that one client keeps in its messages": (CHAT, {"messages": [{**HI, "injected": False}]}),
    "a function without parameters": (CHAT, {"tools": [function()]}),
    "a function with null for parameters": (CHAT, {"tools": [function(parameters=None, strict=None)]}),
    "a schema without properties": (CHAT, {"tools": [function(parameters={"type": "object"})]}),
    "an empty schema": (CHAT, {"tools": [function(parameters={})]}),
    "empty objects as PHP writes them": (
        CHAT, {"tools": [function(parameters={"type": "object", "properties": []})], "logit_bias": [], "metadata": []}
    ),
    "an empty schema as PHP writes it": (CHAT, {"tools": [function(parameters=[])], "tool_choice": "auto"}),
    "no tools but a choice": (CHAT, {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}),
    "integers written as doubles": (
        CHAT, {"max_tokens": 5.0, "top_k": 40.0, "n": 1.0, "seed": 7.0, "temperature": 1.0, "stop": None}
    ),
    "integers written as doubles, in responses": (RESPONSES, {"max_output_tokens": 5.0}),
    "integers written as doubles, in messages": (MESSAGES, {"max_tokens": 5.0, "top_k": 40.0}),
    "integers written as doubles, in options": (OLLAMA, {"options": {"num_predict": 5.0, "top_k": 40.0}}),
    "names of newer models": (CHAT, {"max_completion_tokens": 5, "store": True, "verbosity": "low"}),
    "what is predicted": (CHAT, {"prediction": {"type": "content", "content": "Hi"}}),
    "a search on the web": (CHAT, {"web_search_options": {"search_context_size": "low"}}),
    "calls and a text and reasoning in one answer": (
        CHAT,
        {"messages": [HI, {"role": "assistant", "content": "A", "reasoning_content": "B", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "r"}]},
    ),
    "a schema with classes of characters": (
        CHAT,
        {"tools": [function(parameters={"properties": {"a": {"type": "string", "pattern": "^\\d+$"}}})]},
    ),
    "a system's turn in the middle": (
        MESSAGES, {"messages": [HI, {"role": "system", "content": "B"}, {"role": "assistant", "content": "A"}, HI]}
    ),
    "thinking without a budget": (MESSAGES, {"thinking": {"type": "enabled"}}),
    "thinking behind a text": (
        MESSAGES,
        {"messages": [HI, {"role": "assistant", "content": [
            {"type": "text", "text": "A"}, {"type": "thinking", "thinking": "B", "signature": "s"}]}, HI]},
    ),
    "a picture in a tool's result": (
        MESSAGES,
        {"messages": [HI, USED, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": [ANTHROPIC_IMAGE]}]}]},
    ),
    "options at their defaults": (OLLAMA, {"options": {"typical_p": 1.0, "tfs_z": 1.0, "mirostat": 0}}),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_answered(start_server: StartServer, stream: bool) -> None:
    server = await start_server(FakeEngineClient(respond=saying("Hello"), max_model_len=1000))
    for name, (path, more) in TAKEN.items():
        body = {**PLAIN[path], **more, "stream": stream}
        async with server.http.post(server.url + path, json=body) as response:
            text = await response.text()
            assert (response.status, name) == (200, name), text
        assert '"error"' not in text.replace('"error":null', ""), name


async def test_every_field_may_be_null(server: RunningServer) -> None:
    _, document = await server.get("/openapi.json")
    for path, plain in PLAIN.items():
        if path not in document["paths"]:
            continue
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        fields = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]["properties"]
        assert len(fields) > 8
        status, answer = await server.post(path, {**dict.fromkeys(fields), **plain})
        assert (status, path) == (200, path), answer


NAMED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a form without its schema": (CHAT, {"response_format": {"type": "json_schema"}}, "json_schema"),
    "a file that is no text": (
        CHAT, {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]}, "file"
    ),
    "a choice without tools": (CHAT, {"tools": [], "tool_choice": "required"}, "tool_choice"),
    "half an integer": (CHAT, {"max_tokens": 5.5}, "max_tokens"),
    "a number without an end": (CHAT, {"top_k": 1e300}, "top_k"),
}  # fmt: skip


async def test_what_is_wrong_is_named(server: RunningServer) -> None:
    for name, (path, more, words) in NAMED.items():
        status, answer = await server.post(path, {**PLAIN[path], **more})
        assert (status, name) == (400, name), answer
        assert words in answer["error"]["message"], answer


async def test_each_choice_of_a_stream_ends_once(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying(CALL)))
    body = {"messages": [HI], "tools": [TOOL], "n": 2}
    choices = [chunk["choices"][0] for chunk in chunks_of(await server.stream_bytes(CHAT, body))]
    ends = [(choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"]]
    assert sorted(ends) == [(0, "tool_calls"), (1, "tool_calls")]
    for index in (0, 1):
        calls = [
            call for choice in choices if choice["index"] == index for call in choice["delta"].get("tool_calls", ())
        ]
        assert [call["index"] for call in calls] == [0] * len(calls)
        assert [call["function"].get("name") for call in calls if "id" in call] == ["weather"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_forced_call_ends_as_a_call(start_server: StartServer, choice: Any, stream: bool) -> None:
    said = '[{"name": "weather", "arguments": {"city": "Oslo"}}]'
    server = await start_server(FakeEngineClient(respond=saying(said)))
    body = {"messages": [HI], "tools": [TOOL], "tool_choice": choice}
    if stream:
        reason = chunks_of(await server.stream_bytes(CHAT, body))[-1]["choices"][0]["finish_reason"]
    else:
        reason = (await server.post(CHAT, body))[1]["choices"][0]["finish_reason"]
    assert reason == "tool_calls"


async def test_usage_that_goes_on_with_a_stream_ends_at_the_whole(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying("Hello you")))
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = chunks_of(await server.stream_bytes(CHAT, {"messages": [HI], "stream_options": options}))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    _, whole = await server.post(CHAT, {"messages": [HI]})
    assert chunks[-1]["usage"] == whole["usage"]


def events_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]


@pytest.mark.parametrize("said", ["", "Hello", CALL, f"Hello{CALL}"])
async def test_every_item_of_a_response_is_opened_and_closed(start_server: StartServer, said: str) -> None:
    server = await start_server(FakeEngineClient(respond=saying(said)))
    tools = [{"type": "function", **WEATHER}]
    events = events_of(await server.stream_bytes(RESPONSES, {"input": "Hi", "tools": tools}))
    opened = [event for event in events if event["type"] == "response.output_item.added"]
    closed = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in opened] == list(range(len(opened)))
    assert [event["item"]["id"] for event in opened] == [event["item"]["id"] for event in closed]
    assert all(event["item"]["id"] for event in opened)
    final = events[-1]["response"]
    assert (events[-1]["type"], final["output"]) == ("response.completed", [event["item"] for event in closed])
    texts = [event for event in events if event["type"] == "response.output_text.done"]
    assert len(texts) == sum(item["type"] == "message" for item in final["output"])


async def test_a_message_tells_its_usage_first_and_what_has_stopped_it(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying("Hello")))
    events = events_of(await server.stream_bytes(MESSAGES, {**PLAIN[MESSAGES], "stop_sequences": ["lo"]}))
    first, ending = events[0]["message"], events[-2]["delta"]
    assert first["usage"]["input_tokens"] > 0
    assert (first["stop_reason"], first["stop_sequence"], first["content"]) == (None, None, [])
    assert ending == {"stop_reason": "stop_sequence", "stop_sequence": "lo"}


async def test_a_template_that_wants_content_or_thinking_alone_gets_one(start_server: StartServer) -> None:
    template = (
        "{% for m in messages %}{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
        "{# message.content and message.thinking #}{{ m.content or m.thinking }};"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}"
    )
    server = await start_server(text_model=FakeTextModel(template))
    status, answer = await server.post(CHAT, TAKEN["calls and a text and reasoning in one answer"][1])
    assert status == 200, answer


@pytest.mark.parametrize("path", ["/v1//chat/completions", "//v1/chat/completions", "/v1/chat/completions/"])
async def test_slashes_that_a_client_has_put_too_often(server: RunningServer, path: str) -> None:
    async with server.http.post(f"{server.url}{path}?a=1", json=PLAIN[CHAT], allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (308, "/v1/chat/completions?a=1")
    status, answer = await server.post(path, PLAIN[CHAT])
    assert (status, answer["object"]) == (200, "chat.completion")
    assert (await server.post("/v1//no-such-route/", {}))[0] == 404
