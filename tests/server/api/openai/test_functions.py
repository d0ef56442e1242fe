"""The older form of tools: `functions`, `function_call`, and messages of the role `function`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.server.conftest import RunningServer, StartServer
from tests.server.support.socket_client import open_socket, read_to_end, send
from tests.server.support.sse_reader import chunks_of

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "of a city", "parameters": PARAMETERS}
CLOCK = {"name": "clock"}
ASK = [{"role": "user", "content": "Hi"}]
ARGUMENTS = '{"city": "Oslo"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
FORCED = f'[{{"name": "weather", "arguments": {ARGUMENTS}}}]'
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}!{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ m.name or '' }}|{% endfor %}"
)
PATHS = ("/v1/chat/completions", "/chat/completions")


def saying(text: str) -> Callable[..., list[int]]:
    return lambda *_: list(text.encode())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("said", "choice"), [("So: " + CALL, "auto"), (FORCED, {"name": "weather"})])
async def test_a_call_has_the_older_form_whole_and_streamed(
    start_server: StartServer, path: str, said: str, choice: Any
) -> None:
    server = await start_server(FakeEngineClient(respond=saying(said)))
    body = {"messages": ASK, "functions": [WEATHER, CLOCK], "function_call": choice}
    _, answer = await server.post(path, body)
    (whole,) = answer["choices"]
    called = {"name": "weather", "arguments": ARGUMENTS}
    assert (whole["finish_reason"], whole["message"]["function_call"]) == ("function_call", called)
    assert "tool_calls" not in whole["message"]
    assert whole["message"]["content"] == ("So: " if choice == "auto" else None)
    chunks = chunks_of(await server.stream_bytes(path, body))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    told = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert not any("tool_calls" in delta for delta in deltas)
    assert [part["name"] for part in told if "name" in part] == ["weather"]
    assert "".join(part.get("arguments", "") for part in told) == ARGUMENTS
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"


async def test_the_official_client_reads_it(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying(CALL)))
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        asked: Any = {"model": "fake", "messages": ASK, "functions": [WEATHER]}
        answer = await client.chat.completions.create(**asked)
        stream = await client.chat.completions.create(**asked, stream=True)
        told = [chunk.choices[0].delta.function_call async for chunk in stream]
    assert answer.choices[0].message.function_call.arguments == ARGUMENTS
    assert "".join(part.arguments or "" for part in told if part is not None) == ARGUMENTS


async def test_an_answer_has_one_call_at_most(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying(CALL + CALL.replace("Oslo", "Rome"))))
    body = {"messages": ASK, "functions": [WEATHER]}
    _, answer = await server.post("/v1/chat/completions", body)
    assert answer["choices"][0]["message"]["function_call"]["arguments"] == ARGUMENTS
    chunks = chunks_of(await server.stream_bytes("/v1/chat/completions", body))
    told = [chunk["choices"][0]["delta"].get("function_call", {}) for chunk in chunks]
    assert "".join(part.get("arguments", "") for part in told) == ARGUMENTS


async def test_a_cut_call_is_not_told_as_finished(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying(CALL)))
    body = {"messages": ASK, "functions": [WEATHER], "max_tokens": len(CALL) - 20}
    _, answer = await server.post("/v1/chat/completions", body)
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_without_functions_an_answer_has_the_newer_form(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying(CALL)))
    tools = [{"type": "function", "function": WEATHER}]
    body = {"messages": ASK, "tools": tools, "functions": [], "function_call": None}
    _, answer = await server.post("/v1/chat/completions", body)
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], "function_call" in choice["message"]) == ("tool_calls", False)


async def test_a_socket_tells_of_it(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying(CALL)))
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="x", messages=ASK, functions=[WEATHER])
        _, *deltas, done = await read_to_end(socket, "x")
    told = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert "".join(part.get("arguments", "") for part in told) == ARGUMENTS
    assert (done["finish_reason"], any("tool_calls" in delta for delta in deltas)) == ("function_call", False)


async def test_calls_and_results_of_the_history_reach_the_template(start_server: StartServer) -> None:
    server = await start_server(text_model=FakeTextModel(TEMPLATE))
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": ARGUMENTS}},
        {"role": "function", "name": "weather", "content": "rain"},
        {"role": "ipython", "content": "dry"},
    ]
    _, answer = await server.post("/v1/chat/completions", {"messages": messages, "functions": [WEATHER]})
    told = answer["choices"][0]["message"]["content"]
    assert told == 'weather;user:Hi|assistant:!weather{"city": "Oslo"}|tool:rainweather|tool:dry|'


async def test_with_none_no_function_is_told(start_server: StartServer) -> None:
    server = await start_server(text_model=FakeTextModel(TEMPLATE))
    body = {"messages": ASK, "functions": [WEATHER], "function_call": "none"}
    _, answer = await server.post("/v1/chat/completions", body)
    assert answer["choices"][0]["message"]["content"] == "user:Hi|"


TOOL = {"type": "function", "function": WEATHER}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"functions": [WEATHER], "tools": [TOOL]}, "functions"),
    ({"functions": [WEATHER], "function_call": {"name": "x"}}, "function_call"),
    ({"function_call": {"name": "x"}}, "function_call"),
    ({"functions": [WEATHER], "function_call": "always"}, "function_call"),
    ({"functions": [WEATHER], "function_call": {"name": 5}}, "function_call.name"),
    ({"functions": [WEATHER, WEATHER]}, "functions"),
    ({"functions": [{"name": "a b"}]}, "functions[0].name"),
    ({"functions": [{"description": "d"}]}, "functions[0].name"),
    ({"functions": "weather"}, "functions"),
]


@pytest.mark.parametrize(("parameters", "param"), REFUSED)
async def test_what_is_refused_is_named(server: RunningServer, parameters: dict[str, Any], param: str) -> None:
    status, answer = await server.post("/v1/chat/completions", {"messages": ASK, **parameters})
    assert status == 400, answer
    assert answer["error"]["param"] == param or param in answer["error"]["message"], json.dumps(answer)
