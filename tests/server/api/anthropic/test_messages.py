"""Anthropic's Messages over the fake engine: whole answers, events, errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engine.interface.types import FinishReason
from server.api.anthropic.messages_request import CountTokensRequest
from server.api.openapi.messages import AnthropicMessage, MessageEvent
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.server.conftest import RunningServer, StartServer, eventually

PATH = "/v1/messages"
TOOL = {
    "name": "weather",
    "description": "of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    "cache_control": {"type": "ephemeral"},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}!{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}{{ m.tool_call_id or '' }}|{% endfor %}{% if enable_thinking %}<think>\n{% endif %}{# </think> #}"
)
# Users and assistants by turns, and no other roles: as the templates of many models.
STRICT_TEMPLATE = (
    "{% for m in messages %}{% if m.role != ('user' if loop.index0 % 2 == 0 else 'assistant') %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.role }}:{{ m.content }}|{% endfor %}"
)


async def begin(start_server: StartServer, text: str, template: str = TEMPLATE, **settings: Any) -> RunningServer:
    engine = FakeEngineClient(respond=lambda *_: list(text.encode()))
    return await start_server(engine, text_model=FakeTextModel(template), **settings)


def asking(content: Any = "Why?", **parameters: Any) -> dict[str, Any]:
    return {"model": "fake", "max_tokens": 500, "messages": [{"role": "user", "content": content}], **parameters}


def prompt_of(server: RunningServer) -> str:
    return bytes(server.engine.submitted[-1].prompt_token_ids).decode()


async def events_of(server: RunningServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The stream's events, of which each must be as the document says."""
    told = (await server.stream_bytes(PATH, body)).decode()
    events = []
    for block in told.strip().split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        MessageEvent.model_validate_json(data.removeprefix("data: "))
        events.append(event)
    return events


def rebuilt(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events tell, put together as clients do it."""
    message: dict[str, Any] = events[0]["message"]
    for event in events[1:]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(dict(event["content_block"], json=""))
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "signature_delta":
                        block["signature"] = delta["signature"]
                    case "input_json_delta":
                        block["json"] += delta["partial_json"]
            case "content_block_stop":
                text = message["content"][event["index"]].pop("json")
                if text:
                    message["content"][event["index"]]["input"] = json.loads(text)
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    return message


async def both(server: RunningServer, body: dict[str, Any]) -> dict[str, Any]:
    """The whole answer, which must be what the stream tells too; ids aside."""
    status, answer = await server.post(PATH, body)
    assert status == 200, answer
    AnthropicMessage.model_validate_json(json.dumps(answer))
    events = await events_of(server, body)
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    streamed = rebuilt(events)
    for message in (answer, streamed):
        assert message.pop("id").startswith("msg_")
        for block in message["content"]:
            assert block.pop("id", "toolu_").startswith("toolu_")
    assert streamed == answer
    return dict(answer)


async def test_a_text(start_server: StartServer) -> None:
    server = await begin(start_server, "Because.")
    assert await both(server, asking(system="Be brief.", metadata={"user_id": "x"}, service_tier="auto", a=1)) == {
        "type": "message", "role": "assistant", "model": "fake", "content": [{"type": "text", "text": "Because."}],
        "stop_reason": "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 27, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
                  "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 0}},
    }  # fmt: skip
    assert prompt_of(server) == "system:Be brief.|user:Why?|"


@pytest.mark.parametrize(
    ("parameters", "reason", "sequence", "text"),
    [
        ({"max_tokens": 4}, "max_tokens", None, "Beca"),
        ({"stop_sequences": ["x", "us"]}, "stop_sequence", "us", "Beca"),
        ({"stop_sequences": None, "top_k": 3, "temperature": 1}, "end_turn", None, "Because."),
    ],
)
async def test_why_it_ended(
    start_server: StartServer, parameters: dict[str, Any], reason: str, sequence: str | None, text: str
) -> None:
    answer = await both(await begin(start_server, "Because."), asking(**parameters))
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    assert answer["content"] == [{"type": "text", "text": text}]


async def test_more_tokens_may_be_asked_for_than_there_is_room(start_server: StartServer) -> None:
    server = await begin(start_server, "x" * 2000)
    answer = await both(server, asking(max_tokens=10**6))
    room = server.engine.client.model_info.max_model_len - len("user:Why?|")
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert answer["usage"]["output_tokens"] == room


async def test_calls(start_server: StartServer) -> None:
    server = await begin(start_server, f"I look. {CALL}\n{CALL}")
    answer = await both(server, asking(tools=[TOOL], tool_choice={"type": "auto"}))
    call = {"type": "tool_use", "name": "weather", "input": {"city": "Oslo"}}
    assert answer["content"] == [{"type": "text", "text": "I look. "}, call, call]
    assert answer["stop_reason"] == "tool_use"
    assert prompt_of(server) == "weather;user:Why?|"


async def test_a_call_is_no_block_of_white_space(start_server: StartServer) -> None:
    answer = await both(await begin(start_server, f"\n\n{CALL}\n"), asking(tools=[TOOL]))
    assert [block["type"] for block in answer["content"]] == ["tool_use"]


async def test_with_none_nothing_is_a_call(start_server: StartServer) -> None:
    server = await begin(start_server, "I would. " + CALL)
    answer = await both(server, asking(tools=[TOOL], tool_choice={"type": "none"}))
    assert answer["content"] == [{"type": "text", "text": "I would. "}]


@pytest.mark.parametrize(
    ("thinking", "blocks"),
    [
        ({"type": "enabled", "budget_tokens": 1024},
         [{"type": "thinking", "thinking": "Hm.", "signature": "eagre"}, {"type": "text", "text": "So."}]),
        ({"type": "adaptive", "display": "omitted"},
         [{"type": "thinking", "thinking": "", "signature": "eagre"}, {"type": "text", "text": "So."}]),
    ],
)  # fmt: skip
async def test_thinking(start_server: StartServer, thinking: dict[str, Any], blocks: list[dict[str, Any]]) -> None:
    answer = await both(await begin(start_server, "Hm.\n</think>\n\nSo."), asking(thinking=thinking))
    assert answer["content"] == blocks
    assert answer["usage"]["output_tokens_details"] == {"thinking_tokens": len("Hm.\n</think>")}


@pytest.mark.parametrize("parameters", [{}, {"thinking": {"type": "disabled"}}])
async def test_thinking_that_nobody_asked_for_is_not_told(
    start_server: StartServer, parameters: dict[str, Any]
) -> None:
    answer = await both(await begin(start_server, "<think>Hm.</think>So."), asking(**parameters))
    assert answer["content"] == [{"type": "text", "text": "So."}]


TURNS = [
    {"role": "user", "content": [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": "B"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "C", "citations": None},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}, "caller": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": [{"type": "text", "text": "D"}]},
            {"type": "text", "text": "E"},
        ],
    },
    {"role": "system", "content": "F"},
    {"role": "user", "content": "G"},
]


async def test_a_conversation_goes_to_the_template(start_server: StartServer) -> None:
    server = await begin(start_server, "H")
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=9f3;"}
    body = {"max_tokens": 5, "messages": TURNS, "system": [billing, {"type": "text", "text": "S"}]}
    assert (await server.post(PATH, body))[0] == 200
    assert prompt_of(server) == (
        'system:S|user:A\nB|assistant:(Hm.)C!weather{"city": "Oslo"}|tool:Error: Dt1|user:E|system:F|user:G|'
    )


async def test_a_template_that_refuses_roles_is_told_plain_turns(start_server: StartServer) -> None:
    server = await begin(start_server, "H", STRICT_TEMPLATE)
    body = {"max_tokens": 5, "messages": TURNS, "system": "S"}
    assert (await server.post(PATH, body))[0] == 200
    call = '<tool_call>\n{"name":"weather","arguments":{"city":"Oslo"}}\n</tool_call>'
    assert prompt_of(server) == (
        f"user:S\n\nA\nB|assistant:C\n{call}|user:<tool_response>\nError: D\n</tool_response>\nE\nF\nG|"
    )


async def test_the_last_turn_may_be_the_models_own(start_server: StartServer) -> None:
    server = await begin(start_server, " is.")
    body = asking()
    body["messages"].append({"role": "assistant", "content": "Because it"})
    assert (await both(server, body))["content"][0]["text"] == " is."
    assert prompt_of(server) == "user:Why?|assistant:Because it"


async def test_tokens_are_counted_as_they_are_used(start_server: StartServer) -> None:
    server = await begin(start_server, "H")
    body = {"messages": TURNS, "system": "S", "tools": [TOOL]}
    _, counted = await server.post(PATH + "/count_tokens", body)
    _, answer = await server.post(PATH, {**body, "max_tokens": 5})
    assert counted == {"input_tokens": answer["usage"]["input_tokens"]}


async def test_what_came_from_the_cache_is_told_apart(start_server: StartServer) -> None:
    engine = FakeEngineClient()
    engine.num_cached_tokens = 4
    server = await start_server(engine)
    body = asking()
    _, answer = await server.post(PATH, body)
    assert (answer["usage"]["input_tokens"], answer["usage"]["cache_read_input_tokens"]) == (16, 4)
    events = await events_of(server, body)
    assert events[0]["message"]["usage"]["input_tokens"] == 16
    assert events[-2]["usage"] == answer["usage"]


def one(**block: Any) -> dict[str, Any]:
    return asking([block])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "messages is required"),
    ({"messages": [{"role": "user", "content": "x"}]}, "max_tokens is required"),
    (asking(max_tokens=0), "max_tokens is 0"),
    (asking(max_tokens="5"), "max_tokens"),
    ({"max_tokens": 5, "messages": []}, "messages"),
    ({"max_tokens": 5, "messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"max_tokens": 5, "messages": ["x"]}, "messages[0]"),
    (asking({"type": "text"}), "content"),
    (asking([1]), "content[0]"),
    (asking([{"text": "x"}]), "content[0]"),
    (one(type="text", text=None), "content[0].text"),
    (one(type="sound", source={}), "sound"),
    (one(type="tool_use", id="x", name="x", input="{}"), "content[0].input"),
    (one(type="tool_use", name="x"), "content[0].id"),
    (one(type="tool_result", content="x"), "content[0].tool_use_id"),
    (one(type="tool_result", tool_use_id="x", is_error=1), "content[0].is_error"),
    (one(type="tool_result", tool_use_id="x", content=[{"type": "sound"}]), "content[0].content[0]"),
    (one(type="tool_result", tool_use_id="x", content=[{"type": "tool_result"}]), "content[0].content[0]"),
    (asking([{"type": "text", "text": "x"}] * 4097), "4096"),
    (asking(system=5), "system"),
    (asking(system=[{"type": "image"}]), "system[0]"),
    (asking(tools=[{"name": "x"}]), "input_schema"),
    (asking(tools=[{"name": "web", "type": "custom"}]), "input_schema"),
    (asking(tools=[TOOL, TOOL]), "tools"),
    (asking(tools=[TOOL], tool_choice={"type": "tool"}), "tool_choice"),
    (asking(tools=[TOOL], tool_choice={"type": "tool", "name": "x"}), "tool_choice"),
    (asking(tool_choice={"type": "any"}), "tool_choice"),
    (asking(stop_sequences="x"), "stop_sequences"),
    (asking(stop_sequences=[""]), "stop_sequences"),
    (asking(temperature=5), "temperature"),
    (asking(thinking={"type": "always"}), "thinking"),
]  # fmt: skip


async def test_what_is_refused(server: RunningServer) -> None:
    for body, named in REFUSED:
        status, answer = await server.post(PATH, body)
        assert (status, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error"), answer
        assert named in answer["error"]["message"], answer


async def test_errors_have_anthropics_types(start_server: StartServer) -> None:
    server = await start_server(api_keys=("sk-secret-key",), max_body_bytes=2000)
    body = asking()

    async def ask(body: Any, path: str = PATH, **headers: str) -> tuple[int, str]:
        async with server.http.post(server.url + path, json=body, headers=headers) as response:
            answer = await response.json()
            told = (response.headers["request-id"], response.headers["X-Request-Id"])
            assert set(told) == {answer.get("request_id", answer.get("id", "")).removeprefix("msg_")}
            return response.status, answer["error"]["type"] if response.status != 200 else ""

    assert await ask(body) == (401, "authentication_error")
    assert await ask(body, PATH + "/count_tokens") == (401, "authentication_error")
    key = {"x-api-key": "sk-secret-key", "anthropic-version": "2023-06-01", "anthropic-beta": "x"}
    assert await ask(body, **key) == (200, "")
    assert await ask({**body, "model": "claude"}, **key) == (404, "not_found_error")
    assert await ask(asking("x" * 3000), **key) == (413, "request_too_large")
    assert await ask(body, PATH + "?beta=true", **key) == (200, "")


async def end_in_mid_stream(start_server: StartServer, reason: FinishReason, body: dict[str, Any]) -> Any:
    """The answer to `body`, of which there is a token when it ends for this reason; a stream's events as a list."""
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    ask = events_of(server, body) if body.get("stream") else server.post(PATH, body)
    answer = asyncio.create_task(ask)  # type: ignore[arg-type]
    await eventually(lambda: bool(engine.submitted))
    engine.submitted[0].step()
    await eventually(lambda: engine.submitted[0].num_events_read > 0)
    engine.submitted[0].finish(reason, "the engine has failed")
    return await answer


@pytest.mark.parametrize(
    ("reason", "status", "kind"),
    [
        (FinishReason.ERROR, 503, "overloaded_error"),
        (FinishReason.TIMEOUT, 504, "timeout_error"),
        (FinishReason.ABORT, 503, "overloaded_error"),
    ],
)
async def test_an_answer_without_an_end_is_an_error(
    start_server: StartServer, reason: FinishReason, status: int, kind: str
) -> None:
    events = await end_in_mid_stream(start_server, reason, asking(stream=True))
    assert (events[0]["type"], events[-1]["type"], events[-1]["error"]["type"]) == ("message_start", "error", kind)
    assert events[0]["message"]["id"] == "msg_" + events[-1]["request_id"]
    assert not any(event["type"] == "message_stop" for event in events)
    told, answer = await end_in_mid_stream(start_server, reason, asking())
    assert (told, answer["error"]["type"]) == (status, kind)


async def test_silence_is_filled_with_pings(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, ping_interval=0.01)
    async with server.http.post(server.url + PATH, json=asking(stream=True)) as response:
        told = (await response.content.readuntil(b"ping\n\n")).decode()
        assert told == ": ping\n\n"
        assert await response.content.readuntil(b"\n\n") == b'event: ping\ndata: {"type":"ping"}\n\n'


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


async def test_what_is_nested_too_deeply_to_be_written_is_refused(server: RunningServer) -> None:
    call = f'{{"type":"tool_use","id":"x","name":"x","input":{nested(600)}}}'
    body = f'{{"max_tokens":5,"messages":[{{"role":"assistant","content":[{call}]}}]}}'
    status, answer = await server.post_raw(PATH, body.encode())
    assert (status, "nested too deeply" in answer["error"]["message"]) == (400, True), answer
    tool = f'{{"name":"x","input_schema":{nested(600)}}}'
    body = f'{{"max_tokens":5,"messages":[{{"role":"user","content":"x"}}],"tools":[{tool}]}}'
    status, answer = await server.post_raw(PATH, body.encode())
    assert (status, "nested deeper than 100" in answer["error"]["message"]) == (400, True), answer


async def test_tools_of_servers_are_left_out_with_a_warning(server: RunningServer) -> None:
    kinds = ["web_search_20250305", "advisor_20260301", "code_execution_20250522", "mcp_toolset", "bash_20250124"]
    tools = [{"type": kind, "name": f"n{place}"} for place, kind in enumerate(kinds)]
    for choice, told in (
        (None, []),
        ({"type": "tool", "name": "n1"}, ["tool_choice"]),
        ({"type": "any"}, ["tool_choice"]),
    ):
        body = asking(tools=tools, **({} if choice is None else {"tool_choice": choice}))
        async with server.http.post(server.url + PATH, json=body) as response:
            assert response.status == 200, await response.text()
            ignored = response.headers["X-Eagre-Ignored"].split(", ")
        assert sorted(ignored) == sorted([*(f"tools[].{kind}" for kind in kinds), *told])


async def test_tools_that_messages_add_and_remove(server: RunningServer) -> None:
    definition = {"type": "tool_definition", "name": "late", "input_schema": {"type": "object"}}
    changes = [
        {"type": "tool_addition", "tool": definition},
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": TOOL["name"]}},
        {"type": "text", "text": "x"},
    ]
    query = CountTokensRequest.parse({"messages": [{"role": "user", "content": changes}], "tools": [TOOL]})
    assert [tool.function.name for tool in query.offered_tools] == ["late"]
    assert (await server.post(PATH, asking(changes, tools=[TOOL])))[0] == 200
    broken = [{"type": "tool_addition", "tool": {"name": "late", "input_schema": 5}}]
    status, answer = await server.post(PATH, asking(broken))
    assert (status, "late" in answer["error"]["message"]) == (400, True)


async def test_a_prompt_beyond_the_context_is_refused_in_words_that_clients_know(server: RunningServer) -> None:
    status, answer = await server.post(PATH, asking("x" * 600))
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    words = answer["error"]["message"].split()
    assert (" ".join(words[:4]), words[5:]) == ("prompt is too long:", ["tokens", ">", "512", "maximum"])
    assert int(words[4]) >= 600
    for path, body in (
        ("/v1/responses", {"input": "x" * 600}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 600}]}),
        ("/v1/completions", {"prompt": "x" * 600}),
    ):
        status, answer = await server.post(path, body)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert "maximum context length is 512 tokens" in answer["error"]["message"]
