"""Tools and the choice among them in the forms of other APIs: every route takes them for what they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.server.conftest import RunningServer, StartServer

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
NAMED = {"name": "weather", "description": "of a city"}
FORMS: dict[str, dict[str, Any]] = {
    "chats": {"type": "function", "function": {**NAMED, "parameters": PARAMETERS}},
    "chats, without a type": {"function": {**NAMED, "parameters": PARAMETERS}},
    "responses": {"type": "function", **NAMED, "parameters": PARAMETERS},
    "messages": {**NAMED, "input_schema": PARAMETERS},
    "messages, with a type": {"type": "custom", **NAMED, "input_schema": PARAMETERS},
    "a function with the schema of messages": {"type": "function", **NAMED, "input_schema": PARAMETERS},
    "MCP": {**NAMED, "inputSchema": PARAMETERS},
    "chats with MCP's schema": {"type": "function", "function": {**NAMED, "inputSchema": PARAMETERS}},
    "with more fields": {"type": "function", **NAMED, "parameters": PARAMETERS, "cache_control": None},
}
FORCING: list[Any] = [
    "required",
    "any",
    {"type": "any"},
    {"type": "required"},
    {"type": "tool", "name": "weather"},
    {"type": "function", "name": "weather"},
    {"type": "function", "function": {"name": "weather"}},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
    {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]},
    },
]
SETS = FORCING[-2:]  # which Anthropic's API does not have
LEAVING: list[tuple[Any, bool]] = [
    ("none", False), ({"type": "none"}, False), ({"type": "none", "function": {"name": ""}}, False),
    ("auto", True), ({"type": "auto"}, True), (None, True),
]  # fmt: skip
ASK = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK},
    "/chat/completions": {"messages": ASK},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": ASK, "max_tokens": 200},
    "/api/chat": {"model": "fake", "messages": ASK, "stream": False},
}
WITH_CHOICE = [path for path in BODIES if path != "/api/chat"]
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function | tojson }};{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}"
)
FORCED = '[{"name": "weather", "arguments": {"city": "Oslo"}}]'


def saying(text: str) -> Callable[..., list[int]]:
    return lambda *_: list(text.encode())


def calls_of(path: str, answer: dict[str, Any]) -> list[str]:
    """The names of the calls."""
    if path == "/v1/responses":
        return [item["name"] for item in answer["output"] if item["type"] == "function_call"]
    if path == "/v1/messages":
        return [block["name"] for block in answer["content"] if block["type"] == "tool_use"]
    message = answer["message"] if path == "/api/chat" else answer["choices"][0]["message"]
    return [call["function"]["name"] for call in message.get("tool_calls") or ()]


def prompt_of(server: RunningServer) -> str:
    return bytes(server.engine.submitted[-1].prompt_token_ids).decode()


@pytest.mark.parametrize("path", BODIES)
async def test_a_tool_is_told_and_called_in_whatever_form(start_server: StartServer, path: str) -> None:
    said = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    server = await start_server(FakeEngineClient(respond=saying(said)), text_model=FakeTextModel(TEMPLATE))
    for form, tool in FORMS.items():
        status, answer = await server.post(path, {**BODIES[path], "tools": [tool]})
        assert (status, form) == (200, form), answer
        assert (form, calls_of(path, answer)) == (form, ["weather"])
        told = prompt_of(server)
        assert '"name": "weather"' in told, form
        assert '"properties": {"city": {"type": "string"}}' in told, form


@pytest.mark.parametrize("path", WITH_CHOICE)
async def test_a_choice_forces_a_call_in_whatever_form(start_server: StartServer, path: str) -> None:
    server = await start_server(FakeEngineClient())
    for choice in FORCING:
        if path == "/v1/messages" and choice in SETS:
            continue
        body = {**BODIES[path], "tools": [FORMS["chats"]], "tool_choice": choice}
        server.engine.respond = saying(FORCED)
        status, answer = await server.post(path, body)
        assert (status, choice) == (200, choice), answer
        assert (choice, calls_of(path, answer)) == (choice, ["weather"])
        server.engine.respond = saying("Hello")  # which the grammar of a forced call does not allow
        status, answer = await server.post(path, body)
        assert (status == 400 or answer["status"] == "failed", choice) == (True, choice), answer


@pytest.mark.parametrize("path", WITH_CHOICE)
async def test_a_choice_leaves_it_to_the_model_in_whatever_form(start_server: StartServer, path: str) -> None:
    server = await start_server(text_model=FakeTextModel(TEMPLATE))
    for choice, tells in LEAVING:
        body = {**BODIES[path], "tools": [FORMS["chats"]], "tool_choice": choice}
        status, answer = await server.post(path, body)
        assert (status, choice) == (200, choice), answer
        assert ('"name": "weather"' in prompt_of(server)) == tells, choice


@pytest.mark.parametrize("path", WITH_CHOICE)
async def test_anthropics_word_for_one_call_alone(start_server: StartServer, path: str) -> None:
    said = 2 * '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    server = await start_server(FakeEngineClient(respond=saying(said)))
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    _, answer = await server.post(path, {**BODIES[path], "tools": [FORMS["chats"]], "tool_choice": choice})
    assert calls_of(path, answer) == ["weather"]


async def test_a_choice_that_means_nothing_is_named(server: RunningServer) -> None:
    for path in WITH_CHOICE:
        for choice in ({"type": "tool"}, {"type": "function"}, {"type": "tool", "name": 5}, 5, "always"):
            body = {**BODIES[path], "tools": [FORMS["chats"]], "tool_choice": choice}
            status, answer = await server.post(path, body)
            assert (status, path, choice) == (400, path, choice)
            assert "tool_choice" in answer["error"]["message"]


async def test_a_tool_that_only_its_maker_runs_is_left_out_with_a_warning(server: RunningServer) -> None:
    for path, plain in BODIES.items():
        for kind in ("web_search", "web_search_preview", "builtin_function", "googleSearch", "code_interpreter"):
            body = {**plain, "tools": [FORMS["chats"], {"type": kind}]}
            async with server.http.post(server.url + path, json=body) as response:
                assert response.status == 200, await response.text()
                assert response.headers["X-Eagre-Ignored"] == f"tools[].{kind}"


async def test_a_set_of_nothing_but_tools_that_are_left_out_calls_none(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying("Hello")), text_model=FakeTextModel(TEMPLATE))
    chosen = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "web_search"}]}
    body = {"messages": ASK, "tools": [FORMS["chats"], {"type": "web_search"}], "tool_choice": chosen}
    async with server.http.post(server.url + "/v1/chat/completions", json=body) as response:
        answer = await response.json()
    assert response.status == 200, answer
    assert response.headers["X-Eagre-Ignored"] == "tools[].web_search, tool_choice"
    assert (answer["choices"][0]["message"]["content"], "weather" in prompt_of(server)) == ("Hello", False)


async def test_a_function_with_the_name_of_a_tool_that_is_left_out_is_chosen(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying(FORCED)))
    choice = {"type": "function", "function": {"name": "weather"}}
    body = {"messages": ASK, "tools": [FORMS["chats"], {"type": "weather"}], "tool_choice": choice}
    status, answer = await server.post("/v1/chat/completions", body)
    assert (status, calls_of("/v1/chat/completions", answer)) == (200, ["weather"]), answer


async def test_agents_with_many_servers_send_hundreds_of_tools(start_server: StartServer) -> None:
    said = '<tool_call>\n{"name": "f399", "arguments": {"city": "Oslo"}}\n</tool_call>'
    server = await start_server(FakeEngineClient(respond=saying(said), max_model_len=100_000))
    tools = [{"type": "function", "function": {"name": f"f{at}", "parameters": PARAMETERS}} for at in range(513)]
    for path, plain in BODIES.items():
        status, answer = await server.post(path, {**plain, "tools": tools[:400]})
        assert (status, path, calls_of(path, answer)) == (200, path, ["f399"])
        status, answer = await server.post(path, {**plain, "tools": tools})
        assert (status, path) == (400, path)
        assert "512" in str(answer["error"])
