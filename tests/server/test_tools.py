"""Tools over every transport: calls that a model chooses to make, and calls that it must make."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from openai import AsyncOpenAI

from server.api.openai.chat_request import ChatCompletionRequest
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from server.text.tokenization.control_tokens import ControlTokens
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.grammar_walk import MergedBytes
from tests.fakes.text_model import FakeTextModel, FakeTokenizer
from tests.server.conftest import RunningServer, StartServer
from tests.server.support.socket_client import open_socket, read_to_end, send

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"City": {"enum": ["Oslo", "Rome"]}},
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
ASK: list[Any] = [{"role": "user", "content": "What is the weather?"}]
ARGUMENTS = '{"city": "Oslo", "days": 2}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
FORCED = f'[{{"name": "weather", "arguments": {ARGUMENTS}}}, {{"name": "clock", "arguments": {{}}}}]'

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}!{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ m.tool_call_id or '' }}|{% endfor %}"
)


def saying(text: str) -> Callable[..., list[int]]:
    return lambda *_: list(text.encode())


@pytest.fixture
async def ask(start_server: StartServer) -> AsyncIterator[Callable[..., Any]]:
    """A client of a server whose model says what it is told to."""
    clients = []

    async def begin(text: str) -> AsyncOpenAI:
        server = await start_server(FakeEngineClient(respond=saying(text)))
        clients.append(AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0))
        return clients[-1]

    yield begin
    for client in clients:
        await client.close()


async def test_a_call_that_the_model_chooses(ask: Callable[..., Any]) -> None:
    client = await ask("I look. " + CALL)
    answer = await client.chat.completions.create(model="fake", messages=ASK, tools=[WEATHER, CLOCK])
    (choice,) = answer.choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look. ")
    assert (call.type, call.function.name, call.function.arguments) == ("function", "weather", ARGUMENTS)


@pytest.mark.parametrize(
    ("text", "choice", "calls"),
    [
        (CALL, "auto", [("weather", ARGUMENTS)]),
        (FORCED, "required", [("weather", ARGUMENTS), ("clock", "{}")]),
    ],
)
async def test_calls_stream_as_the_official_client_expects(
    ask: Callable[..., Any], text: str, choice: Any, calls: list[tuple[str, str]]
) -> None:
    client = await ask(text)
    async with client.chat.completions.stream(
        model="fake", messages=ASK, tools=[WEATHER, CLOCK], tool_choice=choice
    ) as stream:
        kinds = [event.type async for event in stream]
        answer = await stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    message = answer.choices[0].message
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == calls
    assert len({call.id for call in message.tool_calls}) == len(calls)
    assert (answer.choices[0].finish_reason, message.content) == ("tool_calls", None)


async def test_the_content_beside_a_call_may_be_left_out(server: RunningServer) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
    for message, expected in (
        ({"role": "assistant", "tool_calls": [call]}, 200),
        ({"role": "assistant", "tool_calls": []}, 400),
        ({"role": "user", "tool_calls": [call]}, 400),
    ):
        assert (await server.post("/v1/chat/completions", {"messages": [*ASK, message]}))[0] == expected


async def test_a_conversation_with_a_call_goes_on(start_server: StartServer) -> None:
    engine = FakeEngineClient(respond=saying("Sunny."))
    server = await start_server(engine, text_model=FakeTextModel(TEMPLATE))
    messages = [
        *ASK,
        {
            "role": "assistant", "content": None, "refusal": None, "audio": None, "function_call": None,
            "tool_calls": [{"id": "call_1", "type": "function", "index": 0,
                            "function": {"name": "weather", "arguments": ARGUMENTS, "parsed_arguments": None}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "20 °C"}]},
    ]  # fmt: skip
    status, _ = await server.post("/v1/chat/completions", {"messages": messages, "tools": [WEATHER, CLOCK]})
    assert status == 200
    prompt = bytes(engine.submitted[0].prompt_token_ids).decode()
    assert prompt == (
        'weather;clock;user:What is the weather?|assistant:!weather{"city": "Oslo", "days": 2}|tool:20 °Ccall_1|'
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_without_a_call_it_is_an_answer_like_any_other(server: RunningServer, stream: bool) -> None:
    body = {"messages": ASK, "tools": [WEATHER], "max_tokens": 5}
    assert (await server.post("/v1/chat/completions", body))[1]["choices"][0] == {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": "user:",
            "refusal": None,
            "reasoning_content": None,
            "reasoning": None,
        },
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
        "matched_stop": None,
        "token_ids": None,
    }


@pytest.mark.parametrize(
    ("sent", "told"),
    [({"city": "Oslo"}, '{"city": "Oslo"}'), (None, "{}"), (..., "{}"), ("", "{}"), ("  ", "{}"), ("null", "{}"),
     ("\ufeff{}", "{}"), ('{"city": "Os', '"{\\"city\\": \\"Os"')],
)  # fmt: skip
@pytest.mark.parametrize("route", ["chat", "responses"])
async def test_arguments_go_back_to_the_model_in_whatever_form_they_come(
    start_server: StartServer, route: str, sent: Any, told: str
) -> None:
    engine = FakeEngineClient(respond=saying("Sunny."))
    server = await start_server(engine, text_model=FakeTextModel(TEMPLATE))
    function = {"name": "f"} if sent is ... else {"name": "f", "arguments": sent}
    if route == "chat":
        call = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }
        body: dict[str, Any] = {"messages": [*ASK, call, {"role": "tool", "tool_call_id": "c", "content": "r"}]}
        status, answer = await server.post("/v1/chat/completions", body)
    else:
        call = {"type": "function_call", "call_id": "c", **function}
        result = {"type": "function_call_output", "call_id": "c", "output": "r"}
        status, answer = await server.post("/v1/responses", {"input": [*ASK, call, result]})
    assert status == 200, answer
    assert f"!f{told}|tool:rc|" in bytes(engine.submitted[0].prompt_token_ids).decode()


class WithControlToken(FakeTokenizer):
    """Token 258 is a control token by the name of a marker."""

    control = ControlTokens({"[TOOL_CALLS]": 258})

    def token_text(self, token_id: int) -> str:
        return "[TOOL_CALLS]" if token_id == 258 else super().token_text(token_id)


async def test_a_marker_that_is_a_control_token_is_seen(start_server: StartServer) -> None:
    text_model = FakeTextModel()
    text_model.tokenizer = WithControlToken()
    written = f'[{{"name": "weather", "arguments": {ARGUMENTS}}}]'
    engine = FakeEngineClient(respond=lambda *_: [*b"Yes.", 258, *written.encode()])
    server = await start_server(engine, text_model=text_model, tool_call_parser="mistral")
    asked = {"messages": ASK, "tools": [WEATHER], "logprobs": True}
    _, answer = await server.post("/v1/chat/completions", asked)
    message = answer["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": ARGUMENTS}
    assert message["content"] == "Yes."
    _, answer = await server.post("/v1/chat/completions", {"messages": ASK})
    assert answer["choices"][0]["message"]["content"] == f"Yes.{written}"


async def test_with_none_nothing_is_a_call(ask: Callable[..., Any]) -> None:
    client = await ask("I would. " + CALL)
    answer = await client.chat.completions.create(model="fake", messages=ASK, tools=[WEATHER], tool_choice="none")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("I would. ", "stop")
    assert answer.choices[0].message.tool_calls is None


async def test_a_socket_tells_of_calls(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying("So: " + CALL)))
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="x", messages=ASK, tools=[WEATHER])
        _, *deltas, done = await read_to_end(socket, "x")
    assert "".join(delta["text"] for delta in deltas) == "So: "
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "weather"
    assert "".join(call["function"]["arguments"] for call in calls) == ARGUMENTS
    assert done["finish_reason"] == "tool_calls"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [WEATHER, WEATHER]}, "tools"),
    ({"tools": [WEATHER] * 513}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
]


@pytest.mark.parametrize(("parameters", "param"), REFUSED)
async def test_what_is_refused(server: RunningServer, parameters: dict[str, Any], param: str) -> None:
    status, answer = await server.post("/v1/chat/completions", {"messages": ASK, **parameters})
    assert status == 400
    assert (answer["error"]["param"] or "").startswith(param) or param in answer["error"]["message"]


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary(MergedBytes(), MergedBytes.vocab_size)


def matches(vocabulary: GrammarVocabulary, parameters: dict[str, Any], text: str) -> bool:
    wish = ChatCompletionRequest.parse({"messages": ASK, "tools": [WEATHER, CLOCK], **parameters}).grammar_request
    assert wish is not None
    grammar = wish.to_grammar()
    assert grammar is not None
    matcher = CompiledGrammar.compile(grammar, vocabulary).matcher()
    try:
        for byte in text.encode():
            matcher.accept(byte)
        matcher.accept(MergedBytes.eos_token_ids[0])
    except Exception:  # noqa: BLE001 - whatever says that it does not match
        return False
    return True


NAMED = {"tool_choice": {"type": "function", "function": {"name": "clock"}}}


@pytest.mark.parametrize(
    ("parameters", "text", "fits"),
    [
        ({"tool_choice": "required"}, FORCED, True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, FORCED, False),
        ({"tool_choice": "required"}, "[]", False),
        ({"tool_choice": "required"}, FORCED.replace("Oslo", "Bonn"), False),
        ({"tool_choice": "required"}, FORCED.replace('"clock"', '"clocks"'), False),
        (NAMED, '[{"name": "clock", "arguments": {"zone": 1}}]', True),
        (NAMED, FORCED, False),
    ],
)
def test_calls_that_must_be_made_follow_the_schemas(
    vocabulary: GrammarVocabulary, parameters: dict[str, Any], text: str, fits: bool
) -> None:
    json.loads(text)
    assert matches(vocabulary, parameters, text) == fits


GRAMMAR = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "^go [a-z]+$"}}
CUSTOM: Any = {"type": "custom", "custom": {"name": "walk", "format": GRAMMAR}}
NAMED = {"type": "custom", "custom": {"name": "walk"}}


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("auto", '<tool_call>{"name": "walk", "arguments": {"input": "go on"}}</tool_call>'),
        ("required", '[{"name": "walk", "arguments": {"input": "go on"}}]'),
        (NAMED, '[{"name": "walk", "arguments": {"input": "go on"}}]'),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
            '[{"name": "walk", "arguments": {"input": "go on"}}]',
        ),
    ],
)  # fmt: skip
async def test_a_custom_tool_has_its_input_as_text(ask: Callable[..., Any], choice: Any, said: str) -> None:
    client = await ask(said)
    asked = {"model": "fake", "messages": ASK, "tools": [CUSTOM, CLOCK], "tool_choice": choice}
    whole = (await client.chat.completions.create(**asked)).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "walk", "go on")
    deltas = [chunk.choices[0].delta async for chunk in await client.chat.completions.create(**asked, stream=True)]
    told = [call for delta in deltas for call in delta.tool_calls or ()]
    assert (told[0].type, told[0].model_extra["custom"]["name"]) == ("custom", "walk")
    assert "".join(call.model_extra["custom"]["input"] for call in told) == "go on"


async def test_the_grammar_of_a_custom_tool_holds(start_server: StartServer) -> None:
    call = '[{"name": "walk", "arguments": {"input": "stay"}}]'
    server = await start_server(FakeEngineClient(respond=saying(call)))
    body = {"messages": ASK, "tools": [CUSTOM], "tool_choice": "required"}
    status, answer = await server.post("/v1/chat/completions", body)
    assert (status, "grammar" in answer["error"]["message"]) == (400, True)


async def test_calls_of_custom_tools_go_back_to_the_template(start_server: StartServer) -> None:
    server = await start_server(text_model=FakeTextModel(TEMPLATE))
    call = {"id": "c1", "type": "custom", "custom": {"name": "walk", "input": 'go "on"'}}
    messages = [
        *ASK,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
    ]
    _, answer = await server.post("/v1/chat/completions", {"messages": messages, "tools": [CUSTOM]})
    told = answer["choices"][0]["message"]["content"]
    assert told == 'walk;user:What is the weather?|assistant:!walk{"input": "go \\"on\\""}|tool:rc1|'
