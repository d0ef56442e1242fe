"""Calls over chat, Responses and Messages, whole and streamed: the same rules on every route."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "number"}}}
CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
OWN = f"<tool_call>\n{CALL}\n</tool_call>"
ROUTES = ("chat", "responses", "messages")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def saying(text: str) -> Callable[..., list[int]]:
    return lambda *_: list(text.encode())


class Answer(NamedTuple):
    """What an answer says on any route: its text, its finished and its cut calls, and whether it ended with calls."""

    text: str
    calls: list[tuple[str, Any]]
    cut: list[str]
    ends_with_calls: bool


def body_of(route: str, **more: Any) -> dict[str, Any]:
    if route == "responses":
        return {"input": "Hi", "tools": [{"type": "function", "name": "weather", "parameters": PARAMETERS}], **more}
    messages = [{"role": "user", "content": "Hi"}]
    if route == "messages":
        limit = {"max_tokens": more.pop("max_output_tokens", 500)}
        return {"messages": messages, "tools": [{"name": "weather", "input_schema": PARAMETERS}], **limit, **more}
    function = {"name": "weather", "parameters": PARAMETERS}
    if "max_output_tokens" in more:
        more["max_tokens"] = more.pop("max_output_tokens")
    return {"messages": messages, "tools": [{"type": "function", "function": function}], **more}


def add_call(calls: list[tuple[str, Any]], cut: list[str], name: str, arguments: str) -> None:
    try:
        calls.append((name, json.loads(arguments, parse_constant=pytest.fail)))
    except ValueError:
        cut.append(name)


def read_chat(choice: dict[str, Any]) -> Answer:
    calls: list[tuple[str, Any]] = []
    cut: list[str] = []
    for call in choice["message"].get("tool_calls") or ():
        add_call(calls, cut, call["function"]["name"], call["function"]["arguments"])
    return Answer(choice["message"]["content"] or "", calls, cut, choice["finish_reason"] == "tool_calls")


def read_response(response: dict[str, Any]) -> Answer:
    calls: list[tuple[str, Any]] = []
    cut: list[str] = []
    text = ""
    for item in response["output"]:
        if item["type"] == "message":
            text += "".join(part["text"] for part in item["content"])
        elif item["status"] == "completed":
            calls.append((item["name"], json.loads(item["arguments"])))
        else:
            assert item["status"] == "incomplete"
            cut.append(item["name"])
    return Answer(text, calls, cut, bool(calls) and not cut)


def read_message(message: dict[str, Any]) -> Answer:
    text = "".join(block["text"] for block in message["content"] if block["type"] == "text")
    calls = [(block["name"], block["input"]) for block in message["content"] if block["type"] == "tool_use"]
    return Answer(text, calls, [], message["stop_reason"] == "tool_use")


async def whole(server: RunningServer, route: str, body: dict[str, Any]) -> Answer:
    status, answer = await server.post(PATHS[route], body)
    assert status == 200, answer
    if route == "chat":
        return read_chat(answer["choices"][0])
    return read_response(answer) if route == "responses" else read_message(answer)


async def streamed(server: RunningServer, route: str, body: dict[str, Any]) -> Answer:
    sent = (await server.stream_bytes(PATHS[route], body)).splitlines()
    events = [json.loads(line[6:]) for line in sent if line.startswith(b"data: {")]
    if route == "chat":
        return _from_chunks(events)
    return read_response(events[-1]["response"]) if route == "responses" else _from_blocks(events)


def _from_chunks(events: list[dict[str, Any]]) -> Answer:
    text, calls, reason = "", {}, None
    for event in events:
        for choice in event["choices"]:
            delta, reason = choice["delta"], choice["finish_reason"] or reason
            assert sum(bool(delta.get(key)) for key in ("content", "reasoning_content", "tool_calls")) <= 1
            text += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                kept = calls.setdefault(call["index"], {"name": "", "arguments": ""})
                kept["name"] += call["function"].get("name", "")
                kept["arguments"] += call["function"]["arguments"]
    message = {"content": text, "tool_calls": [{"function": call} for call in calls.values()]}
    return read_chat({"message": message, "finish_reason": reason})


def _from_blocks(events: list[dict[str, Any]]) -> Answer:
    blocks: dict[int, dict[str, Any]] = {}
    ended: list[dict[str, Any]] = []
    reason = None
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks[event["index"]] = {**event["content_block"], "json": ""}
            case "content_block_delta":
                block, delta = blocks[event["index"]], event["delta"]
                block["text"] = block.get("text", "") + delta.get("text", "")
                block["json"] += delta.get("partial_json", "")
            case "content_block_stop":
                block = blocks[event["index"]]
                ended.append(block | ({"input": json.loads(block["json"])} if block["type"] == "tool_use" else {}))
            case "message_delta":
                reason = event["delta"]["stop_reason"]
    return read_message({"content": ended, "stop_reason": reason})


async def both(start_server: StartServer, route: str, text: str, **more: Any) -> Answer:
    """The whole answer, which must be what the stream tells too."""
    server = await start_server(FakeEngineClient(respond=saying(text)))
    body = body_of(route, **more)
    answer = await whole(server, route, body)
    assert await streamed(server, route, body) == answer
    return answer


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "text", [OWN, CALL, f"```json\n{CALL}\n```", f"<tools>{CALL}</tools>", CALL.replace("arguments", "parameters")]
)
async def test_a_call_in_any_wrapper_is_a_call(start_server: StartServer, route: str, text: str) -> None:
    answer = await both(start_server, route, text)
    assert answer == Answer("", [("weather", {"city": "Oslo"})], [], True)


@pytest.mark.parametrize("route", ROUTES)
async def test_json_in_the_middle_of_prose_is_text(start_server: StartServer, route: str) -> None:
    text = f"Write {CALL} to call it."
    assert await both(start_server, route, text) == Answer(text, [], [], False)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("num_bytes", [36, 50, 60])
@pytest.mark.parametrize("by_length", [True, False])
async def test_a_call_that_is_cut_is_never_told_as_finished(
    start_server: StartServer, route: str, num_bytes: int, by_length: bool
) -> None:
    text = OWN if by_length else OWN[:num_bytes]
    more = {"max_output_tokens": num_bytes} if by_length else {}
    answer = await both(start_server, route, text, **more)
    assert (answer.text, answer.calls, answer.ends_with_calls) == ("", [], False)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('{"city": "Os\nlo"}', {"city": "Os\nlo"}),
        ('{"n": NaN}', {"n": None}),
        ('{"n": 1e400}', {"n": None}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        ('{"city": "\\ud800", "n": 1,}', {"city": "\ufffd", "n": 1}),
    ],
)
async def test_the_json_of_a_call_is_repaired_the_same(
    start_server: StartServer, route: str, written: str, meant: Any
) -> None:
    answer = await both(start_server, route, OWN.replace('{"city": "Oslo"}', written))
    assert answer.calls == [("weather", meant)]


@pytest.mark.parametrize("route", ROUTES)
async def test_without_parallel_calls_an_answer_ends_behind_the_first(start_server: StartServer, route: str) -> None:
    more: dict[str, Any] = {"parallel_tool_calls": False}
    if route == "messages":
        more = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    answer = await both(start_server, route, f"I look. {OWN}{OWN} Done.", **more)
    assert answer == Answer("I look. ", [("weather", {"city": "Oslo"})], [], True)


@pytest.mark.parametrize("route", ROUTES)
async def test_with_none_no_tool_is_told_and_no_markup_leaks(start_server: StartServer, route: str) -> None:
    choice = {"type": "none"} if route == "messages" else "none"
    answer = await both(start_server, route, f"I would. {OWN}", tool_choice=choice)
    assert answer == Answer("I would. ", [], [], False)


@pytest.mark.parametrize("route", ROUTES)
async def test_an_end_without_its_beginning_does_not_leak(start_server: StartServer, route: str) -> None:
    assert await both(start_server, route, "Sunny.</tool_call>") == Answer("Sunny.", [], [], False)


@pytest.mark.parametrize("route", ROUTES)
async def test_the_models_own_syntax_alone_can_be_asked_for(start_server: StartServer, route: str) -> None:
    server = await start_server(FakeEngineClient(respond=saying(CALL)), tool_call_parser="native")
    assert await whole(server, route, body_of(route)) == Answer(CALL, [], [], False)
