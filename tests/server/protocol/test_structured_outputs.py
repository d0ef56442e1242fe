"""response_format and structured_outputs, from the wire to the engine, over every face of the server."""

from __future__ import annotations

import asyncio
import json
import threading
from functools import partial
from typing import Any

import pytest
from websockets.asyncio.client import connect

from engine.interface.config import EngineConfig
from engine.interface.types import FinishReason
from sampling.host.params import InvalidParameter
from server.offline.llm import LLM
from server.protocol.structured_outputs import MAX_CHOICE_TEXTS, ResponseFormat, StructuredOutputs
from server.protocol.tools import ForcedCalls
from server.serving import served_model
from server.serving import structured_output_manager as answer_forms
from server.startup.model_loader import LoadedModel
from server.structured_output.grammar_compiler import GrammarCompiler
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.grammar_walk import allowed_tokens
from tests.fakes.text_model import EOS, FakeTextModel
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.protocol.test_structural_tags import TAGS
from tests.server.structured_output.test_grammar_compiler import Gated
from tests.server.support.sse_reader import chunks_of

pytestmark = pytest.mark.usefixtures("kept_trials")

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


def says(text: str) -> FakeEngineClient:
    """An engine that answers everything with `text`."""
    return FakeEngineClient(respond=lambda *_: text.encode())


BAD: list[tuple[dict[str, Any], str, str, list[str]]] = [
    ({"response_format": "json"}, "response_format", "invalid_value", ["must be an object"]),
    ({"response_format": {}}, "response_format.type", "missing_required_parameter", ["required"]),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value", ["xml", "json_schema"]),
    ({"response_format": {"type": "text", "x": 1}}, "response_format.x", "unknown_parameter", ["response_format.x"]),
    ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_value", ["has no json_schema"]),
    (
        {"response_format": {"type": "json_object", "json_schema": {"name": "a", "schema": {}}}},
        "response_format",
        "invalid_value",
        ["type json_object does not take"],
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}, "schema": {}}},
        "response_format",
        "invalid_value",
        ["type json_schema does not take"],
    ),
    ({"response_format": {"type": "json_object", "schema": 1}}, "response_format.schema", "invalid_value", ["object"]),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        "response_format.json_schema.schema",
        "missing_required_parameter",
        ["required"],
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
        "response_format.json_schema.name",
        "invalid_value",
        ["a b"],
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": []}}}},
        "response_format",
        "invalid_value",
        ["the JSON schema cannot be used", "Unsatisfiable"],
    ),
    ({"structured_outputs": []}, "structured_outputs", "invalid_value", ["must be an object"]),
    (
        {"structured_outputs": {}},
        "structured_outputs",
        "invalid_value",
        ["has nothing", "json, regex, choice, grammar"],
    ),
    ({"structured_outputs": {"regex": None}}, "structured_outputs", "invalid_value", ["has nothing"]),
    (
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        "structured_outputs",
        "invalid_value",
        ["has regex and choice"],
    ),
    (
        {"structured_outputs": {"json_object": True}},
        "structured_outputs.json_object",
        "unknown_parameter",
        ["structured_outputs.json_object"],
    ),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "invalid_value", ["at least 1"]),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "invalid_value", ["a string"]),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs", "invalid_value", ["unclosed group"]),
    ({"structured_outputs": {"choice": []}}, "structured_outputs", "invalid_value", ["0 entries", "from 1 to 1000"]),
    (
        {"structured_outputs": {"choice": ["a"] * (MAX_CHOICE_TEXTS + 1)}},
        "structured_outputs",
        "invalid_value",
        ["1001 entries"],
    ),
    ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs", "invalid_value", ["empty entry"]),
    ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice", "invalid_value", ["a list"]),
    ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]", "invalid_value", ["a string"]),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar", "invalid_value", ["at least 1"]),
    ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs", "invalid_value", ['unknown name: "x"']),
    ({"structured_outputs": {"json": 5}}, "structured_outputs.json", "invalid_value", ["json is 5", "its text"]),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs", "invalid_value", ["not valid JSON"]),
    ({"structured_outputs": {"json": "5"}}, "structured_outputs", "invalid_value", ["must be an object or a boolean"]),
    ({"structured_outputs": {"json": False}}, "structured_outputs", "invalid_value", ["schema is false"]),
    ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs", "invalid_value", ["schema is false"]),
    (
        {"structured_outputs": {"json": {"enum": ["x" * 70_000]}}},
        "structured_outputs",
        "invalid_value",
        ["the JSON schema has 70013 bytes; the limit of this server is 65536"],
    ),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "structured_outputs",
        "invalid_value",
        ["both given"],
    ),
    *(
        ({**both, "response_format": {"type": "json_object"}}, next(iter(both)), "invalid_value", ["both given"])
        for both in ({"json_schema": SCHEMA}, {"grammar": 'root ::= "x"'})
    ),
    ({"json_schema": SCHEMA, "grammar": 'root ::= "x"'}, "grammar", "invalid_value", ["json_schema and grammar"]),
    ({"json_schema": 5}, "json_schema", "invalid_value", ["json_schema is 5", "its text"]),
    ({"json_schema": {"type": "hiccup"}}, "json_schema", "invalid_value", ["hiccup"]),
    ({"grammar": "root ::= this is (not valid"}, "grammar", "invalid_value", ["the grammar"]),
    ({"grammar": 5}, "grammar", "invalid_value", ["a string"]),
    ({"regex": "(a"}, "regex", "invalid_value", ["regex"]),
    ({"ebnf": "root ::= this is (not valid"}, "ebnf", "invalid_value", ["grammar"]),
    ({"regex": "a", "ebnf": 'root ::= "x"'}, "ebnf", "invalid_value", ["regex and ebnf"]),
]


@pytest.mark.parametrize(("wish", "param", "code", "words"), BAD, ids=lambda value: json.dumps(value)[:60])
async def test_bad_wishes(server: RunningServer, wish: dict[str, Any], param: str, code: str, words: list[str]) -> None:
    for stream in (False, True):
        status, body = await server.post("/v1/completions", {"prompt": "a", "stream": stream, **wish})
        assert status == 400
        assert (body["error"]["param"], body["error"]["code"]) == (param, code)
        for part in words:
            assert part in body["error"]["message"]
    assert server.engine.submitted == []


async def test_a_schema_nested_too_deeply(server: RunningServer) -> None:
    for depth in (200, 400):
        schema = '{"items":' * depth + "{}" + "}" * depth
        status, body = await server.post_raw(
            "/v1/completions", b'{"prompt":"a","structured_outputs":{"json":%s}}' % schema.encode()
        )
        assert status == 400
        assert body["error"]["param"].startswith("structured_outputs")


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"response_format": {"type": "json_object"}}, '{"b": [1, {"c": null}]}'),
        ({"response_format": JSON_SCHEMA}, '{"a": 12}'),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, '{"a": 12}'),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, '{"a": 12}'),
        ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "a+b"}}, "aaab"),
        ({"response_format": TAGS}, 'I say <f=a>{"n": 12}</f> here.'),
        ({"structured_outputs": {"json": SCHEMA}}, '{"a":1}'),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, '{"a":1}'),
        ({"structured_outputs": {"json": True}}, '"any"'),
        ({"structured_outputs": {"choice": ["tide", "wave 🌊"]}}, "wave 🌊"),
        ({"structured_outputs": {"grammar": 'start: "a" "b"'}}, "ab"),
        ({"structured_outputs": {"grammar": 'root ::= "x" [0-9]'}}, "x5"),
        ({"json_schema": SCHEMA, "response_format": {"type": "text"}, "grammar": ""}, '{"a":1}'),
        ({"grammar": 'root ::= "x" [0-9]', "json_schema": {}}, "x5"),
        ({"regex": "a+b"}, "aaab"),
        ({"ebnf": 'root ::= "x" [0-9]'}, "x5"),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
async def test_every_wish_reaches_the_engine_by_every_route(
    start_server: StartServer, wish: dict[str, Any], text: str
) -> None:
    server = await start_server(says(text))
    _, body = await server.post("/v1/completions", {"prompt": "a", "max_tokens": 100, **wish})
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == (text, "stop")
    chat = {"messages": [{"role": "user", "content": "a"}], **wish}
    _, body = await server.post("/v1/chat/completions", chat)
    assert body["choices"][0]["message"]["content"] == text
    chunks = chunks_of(await server.stream_bytes("/v1/completions", {"prompt": "a", "max_tokens": 100, **wish}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    async with connect(server.url.replace("http", "ws", 1) + "/v1/stream", proxy=None) as socket:
        await socket.send(json.dumps({"type": "generate", "id": "a", "prompt": "a", "max_tokens": 100, **wish}))
        messages = [json.loads(await socket.recv())]
        while messages[-1]["type"] not in ("done", "error"):
            messages.append(json.loads(await socket.recv()))
    assert "".join(message.get("text", "") for message in messages) == text
    assert len(server.engine.submitted) == 4
    assert all(stream.matcher is not None for stream in server.engine.submitted)


LARGE = {"type": "object", "properties": {"a": {"enum": ["x" * 90] * 3000}}}
LARGE_TOOL = {"type": "function", "function": {"name": "f", "parameters": LARGE, "strict": True}}


@pytest.mark.parametrize(
    ("maker", "wish"),
    [
        ((ForcedCalls, "to_grammar"), {"tools": [LARGE_TOOL], "tool_choice": "required"}),
        ((answer_forms, "tool_call_lark"), {"tools": [LARGE_TOOL]}),
        ((ResponseFormat, "to_grammar"), {"response_format": {"type": "json_object", "schema": LARGE}}),
        ((StructuredOutputs, "to_grammar"), {"structured_outputs": {"json": LARGE}}),
    ],
    ids=["forced", "strict", "format", "structured"],
)
async def test_a_large_grammar_is_made_beside_the_loop(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, maker: tuple[Any, str], wish: dict[str, Any]
) -> None:
    make, threads = getattr(*maker), []

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return make(*args)

    monkeypatch.setattr(*maker, noted)
    server = await start_server(FakeEngineClient(max_model_len=1 << 18))
    body = {"messages": [{"role": "user", "content": "a"}], **wish}
    status, told = await server.post("/v1/chat/completions", body)
    assert status == 400
    limit = (256 if "tools" in wish else 64) << 10
    assert f"bytes; the limit of this server is {limit}" in told["error"]["message"]
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


@pytest.mark.parametrize(
    "wish", [{}, {"response_format": {"type": "text"}}, {"response_format": None}, {"grammar": "", "json_schema": {}}]
)
async def test_who_wishes_nothing_has_no_matcher(server: RunningServer, wish: dict[str, Any]) -> None:
    _, body = await server.post("/v1/completions", {"prompt": "tide", **wish})
    assert body["choices"][0]["text"] == "tide"
    assert server.engine.submitted[0].matcher is None


async def test_what_the_engine_cannot_go_on_with_is_an_error(start_server: StartServer) -> None:
    server = await start_server(says("abx"))
    request = {"prompt": "a", "structured_outputs": {"regex": "abc"}}
    status, body = await server.post("/v1/completions", request)
    assert (status, body["error"]["code"]) == (400, "dead_end")
    assert "does not allow token 120 here" in body["error"]["message"]
    data = await server.stream_bytes("/v1/completions", request)
    assert json.loads(data.strip().split(b"\n\n")[-1].removeprefix(b"data: ")) == body


async def test_each_choice_and_prompt_has_a_matcher_of_its_own(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    request = {"prompt": ["ab", "b"], "n": 2, "structured_outputs": {"regex": "(ab|b)"}}
    answering = asyncio.create_task(server.post("/v1/completions", request))
    await eventually(lambda: len(engine.submitted) == 4)
    matchers = [stream.matcher for stream in engine.submitted]
    assert len(set(map(id, matchers))) == 4
    matchers[0].accept(ord("b"))
    assert allowed_tokens(matchers[0], 260).tolist() == [EOS]
    assert allowed_tokens(matchers[1], 260).tolist() == [ord("a"), ord("b")]
    for stream in engine.submitted:
        stream.abort()
    await answering


async def test_a_grammar_keeps_nobody_else_waiting(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    gated = Gated()
    monkeypatch.setattr(served_model, "GrammarCompiler", partial(GrammarCompiler, compile_grammar=gated))
    server = await start_server(says("ab"))
    body = {"prompt": "a", "structured_outputs": {"regex": "ab"}}
    slow = asyncio.create_task(server.post("/v1/completions", body))
    async with connect(server.url.replace("http", "ws", 1) + "/v1/stream", proxy=None) as socket:
        await socket.send(json.dumps({"type": "generate", "id": "slow", **body}))
        await socket.send(json.dumps({"type": "generate", "id": "free", "prompt": "a"}))
        async with asyncio.timeout(PATIENCE_S):
            messages = [json.loads(await socket.recv())]
            while messages[-1]["type"] != "done":
                messages.append(json.loads(await socket.recv()))
        assert {message["id"] for message in messages} == {"free"}
        assert (await server.post("/v1/completions", {"prompt": "a"}))[0] == 200
        assert not slow.done()
        gated.gate.set()
        assert (await slow)[1]["choices"][0]["text"] == "ab"
        while messages[-1]["type"] != "done" or messages[-1]["id"] != "slow":
            messages.append(json.loads(await socket.recv()))
    assert sum(gated.calls.values()) == 1


async def test_a_grammar_that_the_machine_has_no_time_for_is_to_be_sent_again(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = Gated()
    monkeypatch.setattr(served_model, "GrammarCompiler", partial(GrammarCompiler, compile_grammar=gated))
    server = await start_server(grammar_timeout=0.025)
    status, body = await server.post("/v1/completions", {"prompt": "a", "response_format": JSON_SCHEMA})
    assert (status, body["error"]["code"]) == (429, "queue_full")
    told = body["error"]["message"]  # the second where not even the compilation could begin in time
    own, others = "response_format: the JSON schema is still being compiled", "other grammars are being compiled"
    assert told in (f"{own}; try again later", f"{others}; try again later")
    gated.gate.set()


async def test_the_cap_is_a_setting(start_server: StartServer) -> None:
    server = await start_server(max_grammar_bytes=8)
    status, body = await server.post("/v1/completions", {"prompt": "a", "structured_outputs": {"regex": "a" * 9}})
    assert (status, body["error"]["param"]) == (400, "structured_outputs")
    assert "the regular expression has 9 bytes; the limit of this server is 8" in body["error"]["message"]


async def test_a_client_that_leaves_while_its_grammar_compiles(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = Gated()
    monkeypatch.setattr(served_model, "GrammarCompiler", partial(GrammarCompiler, compile_grammar=gated))
    server = await start_server(says("ab"))
    body = {"prompt": "a", "structured_outputs": {"regex": "ab"}}
    leaves = asyncio.create_task(server.post("/v1/completions", body))
    await eventually(lambda: bool(gated.calls))
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)
    stays = asyncio.create_task(server.post("/v1/completions", body))
    await asyncio.sleep(0.02)
    gated.gate.set()
    assert (await stays)[1]["choices"][0]["text"] == "ab"
    assert len(server.engine.submitted) == 1
    assert sum(gated.calls.values()) == 1


def test_the_offline_model_follows_grammars_too() -> None:
    engine = says('{"a": 7}')
    loaded = LoadedModel(engine.client, FakeTextModel().model)
    with LLM.from_loaded(loaded, model="fake", config=EngineConfig()) as llm:
        assert llm.generate("x", max_tokens=99, response_format=JSON_SCHEMA).text == '{"a": 7}'
        outputs = llm.generate(["x", "y"], max_tokens=99, structured_outputs={"json": SCHEMA}, progress=False)
        assert [output.text for output in outputs] == ['{"a": 7}'] * 2
        stream = llm.stream("x", max_tokens=99, structured_outputs={"json": SCHEMA})
        assert "".join(delta.text for delta in stream) == '{"a": 7}'
        for bad in ({"regex": "("}, {"json": {"enum": []}}, {"json": {"minimum": 2**70}}):
            with pytest.raises(InvalidParameter) as refusal:
                llm.generate("x", structured_outputs=bad)
            assert refusal.value.param == "structured_outputs"
    assert all(stream.matcher is not None for stream in engine.submitted)


async def test_an_answer_cut_short_says_so(start_server: StartServer) -> None:
    server = await start_server(says('{"a": 7}'))
    _, body = await server.post("/v1/completions", {"prompt": "a", "max_tokens": 3, "response_format": JSON_SCHEMA})
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ('{"a', FinishReason.LENGTH.value)
