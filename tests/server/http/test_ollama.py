"""Ollama's API: its forms of requests, lines, calls and errors, over the answers of the other routes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from engine.interface.types import EngineState
from server.api.ollama.requests import ChatRequest
from server.http import ollama
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.server.conftest import RunningServer, StartServer, eventually

KEY, ADMIN = "sk-client-1", "sk-admin-1"
ASK = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
DEEP = json.loads('{"a":' * 300 + "1" + "}" * 300)
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)


def saying(text: str) -> Callable[..., list[int]]:
    return lambda *_: list(text.encode())


async def lines(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with server.http.post(server.url + path, json=body) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "application/x-ndjson"
        return [json.loads(line) for line in (await response.text()).splitlines()]


async def test_a_chat_streams_lines_and_ends_with_counts(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying("Hello you")))
    *pieces, last = await lines(server, "/api/chat", ASK)  # streaming is the default
    assert "".join(piece["message"]["content"] for piece in pieces) == "Hello you"
    assert {(piece["model"], piece["done"], piece["message"]["role"]) for piece in pieces} == {
        ("fake", False, "assistant")
    }
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "stop", "")
    assert (last["eval_count"], last["prompt_eval_count"] > 0) == (len("Hello you") + 1, True)  # and the end
    assert 0 < last["eval_duration"] <= last["total_duration"]


async def test_a_whole_chat(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying("Hello")))
    status, answer = await server.post("/api/chat", {**ASK, "stream": False, "options": {"num_predict": 3}})
    assert (status, answer["message"], answer["done_reason"]) == (
        200,
        {"role": "assistant", "content": "Hel"},
        "length",
    )


async def test_options_set_the_parameters_of_the_same_meaning(server: RunningServer) -> None:
    options = {
        "temperature": 0.5, "top_k": 7, "top_p": 0.8, "min_p": 0.1, "typical_p": 0.9, "repeat_penalty": 1.3, "seed": 5,
        "presence_penalty": 0.2, "frequency_penalty": 0.1, "num_predict": 4, "stop": ["x"], "num_ctx": 512,
        "mirostat": 0,
    }  # fmt: skip
    status, _ = await server.post("/api/chat", {**ASK, "stream": False, "options": options})
    assert status == 200
    params = server.engine.submitted[-1].params
    got = (params.temperature, params.top_k, params.top_p, params.min_p, params.repetition_penalty, params.seed)
    assert got == (0.5, 7, 0.8, 0.1, 1.3, 5)
    assert (params.max_tokens, params.presence_penalty, params.typical_p) == (4, 0.2, 0.9)


@pytest.mark.parametrize("length", [-1, -2])
async def test_a_negative_length_is_no_limit(server: RunningServer, length: int) -> None:
    body = {"model": "fake", "prompt": "ab", "raw": True, "stream": False, "options": {"num_predict": length}}
    await server.post("/api/generate", body)
    assert server.engine.submitted[-1].params.max_tokens > 16


async def test_the_tag_that_clients_add_names_the_same_model(server: RunningServer) -> None:
    status, answer = await server.post("/api/chat", {**ASK, "model": "fake:latest", "stream": False})
    assert (status, answer["model"]) == (200, "fake")


@pytest.mark.parametrize("stream", [True, False])
async def test_calls_come_whole_with_their_arguments_as_objects(start_server: StartServer, stream: bool) -> None:
    server = await start_server(FakeEngineClient(respond=saying(CALLS)))
    body = {**ASK, "tools": [TOOL], "stream": stream}
    answers = await lines(server, "/api/chat", body) if stream else [(await server.post("/api/chat", body))[1]]
    calls = [call["function"] for answer in answers for call in answer["message"].get("tool_calls", [])]
    assert calls == [
        {"index": 0, "name": "weather", "arguments": {"city": "Oslo"}},
        {"index": 1, "name": "weather", "arguments": {"city": "Rome"}},
    ]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_has_an_id_that_its_result_may_name(start_server: StartServer, stream: bool) -> None:
    server = await start_server(FakeEngineClient(respond=saying(CALLS)))
    body = {**ASK, "tools": [TOOL], "stream": stream}
    answers = await lines(server, "/api/chat", body) if stream else [(await server.post("/api/chat", body))[1]]
    calls = [call for answer in answers for call in answer["message"].get("tool_calls", [])]
    assert len({call["id"] for call in calls}) == 2
    template = (
        "{% for m in messages %}{{ m.tool_call_id }}{% for c in m.tool_calls %}{{ c.id }};{% endfor %}{% endfor %}"
    )
    server = await start_server(text_model=FakeTextModel(template))
    result = {"role": "tool", "tool_call_id": calls[1]["id"], "content": "rain"}
    history = [*ASK["messages"], {"role": "assistant", "content": None, "tool_calls": calls}, result]
    status, answer = await server.post("/api/chat", {"model": "fake", "messages": history, "stream": False})
    assert status == 200, answer
    assert answer["message"]["content"] == f"{calls[0]['id']};{calls[1]['id']};{calls[1]['id']}"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_custom_tool_is_a_function_of_one_text(start_server: StartServer, stream: bool) -> None:
    said = '<tool_call>{"name": "walk", "arguments": {"input": "go on"}}</tool_call>'
    server = await start_server(FakeEngineClient(respond=saying(said)))
    body = {**ASK, "tools": [{"type": "custom", "custom": {"name": "walk"}}], "stream": stream}
    answers = await lines(server, "/api/chat", body) if stream else [(await server.post("/api/chat", body))[1]]
    calls = [call["function"] for answer in answers for call in answer["message"].get("tool_calls", [])]
    assert calls == [{"index": 0, "name": "walk", "arguments": {"input": "go on"}}]


@pytest.mark.parametrize("arguments", ['{"city": "Oslo"}', {"city": "Oslo"}, None, ""])
async def test_arguments_of_the_history_may_be_a_text(server: RunningServer, arguments: Any) -> None:
    call = {"function": {"name": "weather", "arguments": arguments}}
    history = [*ASK["messages"], {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "rain"}]
    status, answer = await server.post("/api/chat", {"model": "fake", "messages": history, "stream": False})
    assert status == 200, answer


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [("/api/chat", ASK), ("/api/generate", {"model": "fake", "prompt": "ab"}),
     ("/api/generate", {"model": "fake", "prompt": "ab", "raw": True})],
)  # fmt: skip
async def test_log_probabilities_stand_beside_the_text(
    start_server: StartServer, path: str, body: dict[str, Any], stream: bool
) -> None:
    server = await start_server(FakeEngineClient(respond=saying("tide 🌊")))
    asked = {**body, "logprobs": True, "top_logprobs": 2, "stream": stream}
    answers = await lines(server, path, asked) if stream else [(await server.post(path, asked))[1]]
    told = [entry for answer in answers for entry in answer.get("logprobs", ())]
    assert bytes(byte for entry in told for byte in entry["bytes"] or ()).decode() == "tide 🌊"
    assert {len(entry["top_logprobs"]) for entry in told} == {2}
    status, answer = await server.post(path, {**body, "top_logprobs": 2})
    assert (status, "top_logprobs" in answer["error"]) == (400, True)


async def test_a_call_that_is_cut_is_no_call(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=saying(CALLS)))
    body = {**ASK, "tools": [TOOL], "stream": False, "options": {"num_predict": 58}}
    _, answer = await server.post("/api/chat", body)
    assert answer["done_reason"] == "length"
    assert "tool_calls" not in answer["message"]


async def test_calls_and_results_of_the_history_reach_the_template(server: RunningServer) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    history = [
        {"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call], "thinking": "hm"},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
    ]  # fmt: skip
    status, rendered = await server.post(
        "/v1/chat/completions/render",
        {"messages": [
            history[0],
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
                {"id": "call_1_0", "type": "function",
                 "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}]},
            {"role": "tool", "name": "weather", "content": "rain"}]},
    )  # fmt: skip
    assert status == 200
    await server.post("/api/chat", {"model": "fake", "messages": history, "stream": False})
    assert server.engine.submitted[-1].prompt_token_ids == rendered["token_ids"]


async def test_generate_uses_the_template_unless_it_is_raw(server: RunningServer) -> None:
    *pieces, last = await lines(server, "/api/generate", {"model": "fake", "prompt": "abc", "raw": True})
    assert "".join(piece["response"] for piece in pieces) == "abc"
    assert (last["response"], last["done_reason"]) == ("", "stop")
    await server.post("/api/generate", {"model": "fake", "prompt": "abc", "system": "s", "stream": False})
    assert bytes(server.engine.submitted[-1].prompt_token_ids) != b"abc"


async def test_an_option_that_would_change_the_answer_is_ignored_with_a_warning(server: RunningServer) -> None:
    options = {"repeat_last_n": 3, "num_ctx": 2048}
    body = {"model": "fake", "prompt": "ab", "stream": False, "options": options}
    async with server.http.post(server.url + "/api/generate", json=body) as response:
        assert (response.status, response.headers["X-Eagre-Ignored"]) == (200, "options.repeat_last_n")


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [("/api/generate", {}, {"response": ""}), ("/api/chat", {}, {"message": {"role": "assistant", "content": ""}})],
)
async def test_a_request_without_a_prompt_loads_the_model(
    server: RunningServer, path: str, body: dict[str, Any], text: dict[str, Any]
) -> None:
    status, answer = await server.post(path, {"model": "fake", **body})
    assert status == 200
    assert answer.items() >= {**text, "done": True, "done_reason": "load"}.items()
    async with server.http.post(server.url + path, json={"model": "fake", "keep_alive": 0}) as response:
        assert response.headers["X-Eagre-Ignored"] == "keep_alive"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "none"}, 404, "none"),
        ({"options": {"temperature": 99}}, 400, "temperature is 99"),
        ({"options": {"temprature": 1}}, 400, 'unknown parameter "options.temprature"; did you mean "temperature"?'),
        ({"options": {"mirostat": 2}}, 400, "options.mirostat is 2; it is not supported"),
        ({"options": 7}, 400, "options is 7"),
        ({"options": {"num_predict": "x"}}, 400, "options.num_predict"),
        ({"messages": [{"role": "user", "content": "x", "images": ["AAAA"]}]}, 400, "messages[0].images[0]"),
        ({"format": 7}, 400, "format"),
        ({"keep_alive": "soon"}, 400, 'keep_alive is "soon"; it must be a number of seconds or a text like "5m"'),
        ({"keep_alive": True}, 400, "keep_alive is true"),
        ({"keep_alive": []}, 400, "keep_alive is []"),
        ({"messages": 7}, 400, "messages"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": DEEP}}]}]},
            400,
            "arguments are nested too deeply",
        ),
    ],
)
async def test_errors_have_ollamas_form(server: RunningServer, body: dict[str, Any], status: int, words: str) -> None:
    got, answer = await server.post("/api/chat", {**ASK, **body})
    assert (got, list(answer)) == (status, ["error"])
    assert words in answer["error"]


async def test_embeddings_are_those_of_the_other_route(server: RunningServer) -> None:
    _, known = await server.post("/v1/embeddings", {"input": ["ab", "cd"]})
    vectors = [entry["embedding"] for entry in known["data"]]
    status, answer = await server.post("/api/embed", {"model": "fake", "input": ["ab", "cd"]})
    assert (status, answer["embeddings"], answer["prompt_eval_count"]) == (200, vectors, 4)
    _, one = await server.post("/api/embeddings", {"model": "fake", "prompt": "ab"})
    assert one == {"embedding": vectors[0]}


async def test_the_models_and_the_version(server: RunningServer) -> None:
    _, tags = await server.get("/api/tags")
    _, loaded = await server.get("/api/ps")
    assert [model["name"] for model in tags["models"]] == [model["name"] for model in loaded["models"]] == ["fake"]
    _, shown = await server.post("/api/show", {"model": "fake"})
    assert {"completion", "tools"} <= set(shown["capabilities"])
    assert shown["model_info"]["general.architecture"]
    _, version = await server.get("/api/version")
    assert version["version"].count(".") == 2
    assert await server.post("/api/pull", {"name": "fake"}) == (200, {"status": "success"})
    status, _ = await server.post("/api/pull", {"name": "other"})
    assert status == 404
    async with server.http.delete(server.url + "/api/delete", json={"model": "fake"}) as response:
        assert (response.status, "operator" in (await response.json())["error"]) == (403, True)


async def test_zero_tokens_are_without_limit(server: RunningServer) -> None:
    status, answer = await server.post("/api/chat", {**ASK, "stream": False, "options": {"num_predict": 0}})
    assert (status, answer["done_reason"]) == (200, "stop")


@pytest.mark.parametrize("body", [{}, {"prompt": "ab", "stream": False}, {"prompt": "ab"}])
async def test_an_administrator_says_how_long_a_model_stays_awake(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> None:
    monkeypatch.setattr(ollama, "LEAST_KEEP_ALIVE_S", 0.02)
    engine = FakeEngineClient()
    server = await start_server(engine, admin_keys=(ADMIN,), api_keys=(KEY,))

    async def generate(key: str, keep_alive: object) -> str:
        asked = {"model": "fake", **body, "keep_alive": keep_alive}
        headers = {"Authorization": f"Bearer {key}"}
        async with server.http.post(server.url + "/api/generate", json=asked, headers=headers) as response:
            assert response.status == 200
            await response.read()
        async with server.http.get(server.url + "/api/ps", headers=headers) as response:
            loaded = (await response.json())["models"]
        return str(loaded[0]["expires_at"]) if loaded else ""

    assert (await generate(KEY, "10ms")).startswith("9999")
    assert not (await generate(ADMIN, "1h30m")).startswith("9999")
    await generate(ADMIN, "10ms")
    await eventually(lambda: engine.lifecycle.state is EngineState.ASLEEP)
    await generate(ADMIN, -1)
    assert (await generate(KEY, 5)).startswith("9999")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (5, 5),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("300", 300),
        ("-1", -1),
        (-7, -1),
        ("500ms", 0.5),
        ("0s", 0),
    ],
)
def test_durations(value: object, seconds: float) -> None:
    assert ChatRequest.parse({"model": "fake", "messages": [], "keep_alive": value}).keep_alive == seconds


@pytest.mark.parametrize("value", ["", "m", "5 m", "5x", "m5", "1" * 1000, "٣", "--5", float("nan"), {}])
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValidationError, match="keep_alive"):
        ChatRequest.parse({"model": "fake", "messages": [], "keep_alive": value})
