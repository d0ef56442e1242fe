"""Every kind of bad input: the sentence, the parameter, the status, and no harm to a stream beside it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from server.protocol.errors import shorten
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.support.sse_reader import chunks_of

MESSAGES = [{"role": "user", "content": "x"}]

# body, status, param, code, what the message must name
COMPLETIONS: list[tuple[Any, int, str | None, str, list[str]]] = [
    ({}, 400, "prompt", "missing_required_parameter", ["prompt is required"]),
    ([], 400, None, "invalid_type", ["must be an object"]),
    ("text", 400, None, "invalid_type", ["must be an object"]),
    ({"prompt": ""}, 400, "prompt", "invalid_value", ["prompt is empty", "at least one token"]),
    ({"prompt": []}, 400, "prompt", "invalid_value", ["prompt is empty"]),
    ({"prompt": ["a", ""]}, 400, "prompt", "invalid_value", ["prompt is empty"]),
    ({"prompt": [[1], []]}, 400, "prompt", "invalid_value", ["prompt is empty"]),
    ({"prompt": 5}, 400, "prompt", "invalid_value", ["prompt is 5", "must be a string"]),
    ({"prompt": [1, "a"]}, 400, "prompt", "invalid_value", ["entry 1"]),
    ({"prompt": [True]}, 400, "prompt", "invalid_value", ["entry true"]),
    ({"prompt": [1.5]}, 400, "prompt", "invalid_value", ["entry 1.5"]),
    ({"prompt": ["a"] * 65}, 400, "prompt", "invalid_value", ["65 prompts", "at most 64"]),
    ({"prompt": [260]}, 400, "prompt", "invalid_value", ["token id 260", "259"]),
    ({"prompt": [-1]}, 400, "prompt", "invalid_value", ["token id -1"]),
    ({"prompt": "x" * 600}, 400, "prompt", "context_length_exceeded", ["600 tokens", "512 tokens"]),
    ({"prompt": ["ok", "x" * 600]}, 400, "prompt", "context_length_exceeded", ["600 tokens", "512 tokens"]),
    ({"prompt": "a", "model": "other"}, 404, "model", "model_not_found", ["other", "fake"]),
    ({"prompt": "a", "model": 3}, 400, "model", "invalid_value", ["model is 3", "a string"]),
    ({"prompt": "a", "temprature": 1}, 400, "temprature", "unknown_parameter", ['did you mean "temperature"?']),
    ({"prompt": "a", "maxTokens": 1}, 400, "maxTokens", "unknown_parameter", ['did you mean "max_tokens"?']),
    ({"prompt": "a", "messages": MESSAGES}, 400, "messages", "unknown_parameter", ["messages"]),
    ({"prompt": "a", "max_tokens": "5"}, 400, "max_tokens", "invalid_value", ['max_tokens is "5"', "an integer"]),
    ({"prompt": "a", "max_tokens": True}, 400, "max_tokens", "invalid_value", ["max_tokens is true", "an integer"]),
    ({"prompt": "a", "max_tokens": 2.5}, 400, "max_tokens", "invalid_value", ["2.5", "an integer"]),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "invalid_value", ["max_tokens is 0", "at least 1"]),
    (
        {"prompt": "a", "max_tokens": 600},
        400,
        "max_tokens",
        "context_length_exceeded",
        ["max_tokens is 600", "1 tokens", "512"],
    ),
    ({"prompt": "a", "max_tokens": 10**30}, 400, "max_tokens", "invalid_value", ["max_tokens", "an integer"]),
    ({"prompt": "a", "temperature": 2.5}, 400, "temperature", "invalid_value", ["2.5", "from 0 to 2"]),
    ({"prompt": "a", "temperature": "1"}, 400, "temperature", "invalid_value", ['"1"', "a number"]),
    ({"prompt": "a", "temperature": False}, 400, "temperature", "invalid_value", ["false", "a number"]),
    ({"prompt": "a", "top_p": 0}, 400, "top_p", "invalid_value", ["top_p is 0", "above 0"]),
    ({"prompt": "a", "top_k": -2}, 400, "top_k", "invalid_value", ["top_k is -2"]),
    ({"prompt": "a", "min_p": 1.1}, 400, "min_p", "invalid_value", ["min_p is 1.1"]),
    ({"prompt": "a", "seed": 2**63}, 400, "seed", "invalid_value", ["seed", "64 bits"]),
    ({"prompt": "a", "n": 0}, 400, "n", "invalid_value", ["n is 0", "at least 1"]),
    ({"prompt": "a", "n": 17}, 400, "n", "invalid_value", ["n is 17", "at most 16"]),
    ({"prompt": "a", "stop": ["a"] * 17}, 400, "stop", "invalid_value", ["17 entries", "at most 16"]),
    ({"prompt": "a", "stop": ""}, 400, "stop", "invalid_value", ["0 characters", "from 1 to 256"]),
    ({"prompt": "a", "stop": "x" * 257}, 400, "stop", "invalid_value", ["257 characters", "256"]),
    ({"prompt": "a", "stop": [1]}, 400, "stop", "invalid_value", ["stop is [1]", "string"]),
    ({"prompt": "a", "stop_token_ids": [260]}, 400, "stop_token_ids", "invalid_value", ["260", "0 to 259"]),
    ({"prompt": "a", "stop_token_ids": ["1"]}, 400, "stop_token_ids[0]", "invalid_value", ["an integer"]),
    ({"prompt": "a", "stop_token_ids": [1] * 65}, 400, "stop_token_ids", "invalid_value", ["65", "at most 64"]),
    ({"prompt": "a", "stream": "yes"}, 400, "stream", "invalid_value", ["true or false"]),
    ({"prompt": "a", "stream_options": {}}, 400, "stream_options", "invalid_value", ["stream is not true"]),
    (
        {"prompt": "a", "stream": True, "stream_options": {"x": 1}},
        400,
        "stream_options.x",
        "unknown_parameter",
        ["stream_options.x"],
    ),
    ({"prompt": "a", "request_id": "a b"}, 400, "request_id", "invalid_value", ["request_id"]),
    ({"prompt": "a", "suffix": "b"}, 400, "suffix", "unsupported_parameter", ["suffix", "no tokens for filling a gap"]),
    ({"prompt": "a", "suffix": "b", "echo": True}, 400, "echo", "invalid_value", ["suffix and echo"]),
    (
        {"prompt": "a", "truncate_prompt_tokens": 0},
        400,
        "truncate_prompt_tokens",
        "invalid_value",
        ["-1 or at least 1"],
    ),
    ({"prompt": "a", "num_prompt_output_tokens": 1 << 62}, 400, "num_prompt_output_tokens", "invalid_value", ["less"]),
    (
        {"prompt": "abc", "truncate_prompt_tokens": -1, "max_tokens": 512},
        400,
        "max_tokens",
        "context_length_exceeded",
        ["max_tokens is 512 and the prompt has 1 tokens"],
    ),
    ({"prompt": "a", "num_prompt_output_tokens": -1}, 400, "num_prompt_output_tokens", "invalid_value", ["at least 0"]),
]

CHAT: list[tuple[Any, int, str | None, str, list[str]]] = [
    ({}, 400, "messages", "missing_required_parameter", ["messages is required"]),
    ({"messages": []}, 400, "messages", "invalid_value", ["messages", "at least 1"]),
    (
        {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"messages": []}},
        400,
        "chat_template_kwargs",
        "invalid_value",
        ["the name messages", "reserved"],
    ),
    (
        {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": "x" * 65536}},
        400,
        "chat_template_kwargs",
        "invalid_value",
        ["65544 bytes", "at most 65536"],
    ),
    (
        {
            "messages": [{"role": "user", "content": "x"}],
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "f", "parameters": json.loads('{"a":' * 500 + "1" + "}" * 500)},
                }
            ],
        },
        400,
        "tools[0].function.parameters",
        "invalid_value",
        ["nested deeper than 100 levels"],
    ),
    (
        {"messages": [{"role": "user", "content": "x"}], "documents": [{"a": json.loads("[" * 20 + "]" * 20)}]},
        400,
        "documents",
        "invalid_value",
        ["deeper than 16 levels"],
    ),
    (
        {
            "messages": [{"role": "user", "content": "x"}],
            "add_generation_prompt": True,
            "continue_final_message": True,
        },
        400,
        "continue_final_message",
        "invalid_value",
        ["both true"],
    ),
    ({"messages": "hi"}, 400, "messages", "invalid_value", ["a list"]),
    ({"messages": [5]}, 400, "messages[0]", "invalid_value", ["messages[0] is 5", "an object"]),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content", "missing_required_parameter", ["required"]),
    ({"messages": [{"content": "x"}]}, 400, "messages[0].role", "missing_required_parameter", ["required"]),
    (
        {"messages": [{"role": "a king", "content": "x"}]},
        400,
        "messages[0].role",
        "invalid_value",
        ['"a king"', "pattern"],
    ),
    (
        {"messages": [{"role": "user", "content": None}]},
        400,
        "messages[0].content",
        "invalid_value",
        ["content is null", "a string"],
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        400,
        "messages[0].content",
        "invalid_value",
        ["content[0].image_url", "must look like"],
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        400,
        "messages[0].content",
        "invalid_value",
        ["must look like"],
    ),
    ({"messages": MESSAGES, "prompt": "a"}, 400, "prompt", "unknown_parameter", ["prompt"]),
    (
        {"messages": [{"role": "user", "content": "x" * 600}]},
        400,
        "messages",
        "context_length_exceeded",
        ["tokens", "512 tokens"],
    ),
    (
        {"messages": MESSAGES, "max_completion_tokens": 0},
        400,
        "max_completion_tokens",
        "invalid_value",
        ["max_completion_tokens is 0", "at least 1"],
    ),
    (
        {"messages": MESSAGES, "max_completion_tokens": 600},
        400,
        "max_completion_tokens",
        "context_length_exceeded",
        ["max_completion_tokens is 600"],
    ),
    ({"messages": MESSAGES, "tools": [{}]}, 400, "tools[0].function", "missing_required_parameter", ["tools"]),
]


@pytest.mark.parametrize(
    ("path", "case"),
    [("/v1/completions", case) for case in COMPLETIONS] + [("/v1/chat/completions", case) for case in CHAT],
    ids=lambda value: json.dumps(value[0])[:60] if isinstance(value, tuple) else value,
)
async def test_bad_bodies(
    start_server: StartServer, path: str, case: tuple[Any, int, str | None, str, list[str]]
) -> None:
    body, status, param, code, named = case
    server = await start_server(FakeEngineClient(max_model_len=512))
    got_status, answer = await server.post_raw(path, json.dumps(body).encode())
    error = answer["error"]
    assert answer.keys() == {"error"}
    sizes = {"n_prompt_tokens", "n_ctx"} if code == "context_length_exceeded" else set()  # as llama.cpp has them
    assert error.keys() == {"message", "type", "param", "code"} | sizes
    assert (got_status, error["param"], error["code"]) == (status, param, code), error
    assert error["type"] == "invalid_request_error"
    for words in named:
        assert words in error["message"]
    assert len(error["message"]) < 400
    assert server.engine.submitted == []


@pytest.mark.parametrize(
    "data", [b"{", b"", b"\xff\xfe", b'{"prompt": "a"} x', b'{"prompt": NaN}', b'{"prompt": "\\ud800"}', b"[" * 50_000]
)
async def test_what_is_not_json(start_server: StartServer, data: bytes) -> None:
    server = await start_server()
    status, answer = await server.post_raw("/v1/completions", data)
    assert (status, answer["error"]["code"]) == (400, "invalid_json")
    assert "JSON" in answer["error"]["message"]


@pytest.mark.parametrize("name", ["prompt", "stop", "temperature", "logit_bias", "temprature", "model"])
@pytest.mark.parametrize("nested", ["[" * 400 + "]" * 400, '{"a":' * 400 + "1" + "}" * 400])
async def test_values_nested_deeper_than_the_answer_can_repeat(
    start_server: StartServer, name: str, nested: str
) -> None:
    server = await start_server()
    given = "" if name == "prompt" else '"prompt": "a", '
    status, answer = await server.post_raw("/v1/completions", f'{{{given}"{name}": {nested}}}'.encode())
    assert (status, answer["error"]["param"]) == (400, name)
    status, answer = await server.post_raw("/v1/completions", b"[" * 400 + b"]" * 400)
    assert (status, answer["error"]["code"]) == (400, "invalid_type")


async def test_a_body_that_is_not_encoded_as_it_says(start_server: StartServer) -> None:
    server = await start_server()
    url, headers = server.url + "/v1/completions", {"Content-Encoding": "gzip"}
    async with server.http.post(url, data=b"no gzip", headers=headers) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (400, "invalid_encoding")


@pytest.mark.parametrize("encoding", ["gzip, gzip", "compress", "GZIP,identity"])
async def test_a_body_in_an_encoding_that_is_not_known(start_server: StartServer, encoding: str) -> None:
    server = await start_server()
    url, body = server.url + "/v1/completions", b'{"prompt": "a"}'
    async with server.http.post(url, data=body, headers={"Content-Encoding": encoding}) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (415, "unsupported_encoding")


async def test_a_body_over_the_limit(start_server: StartServer) -> None:
    server = await start_server(max_body_bytes=2000)
    status, answer = await server.post("/v1/completions", {"prompt": "x" * 3000})
    assert status == 413
    assert "2000 bytes" in answer["error"]["message"]


async def test_unknown_routes_and_methods_answer_in_json(start_server: StartServer) -> None:
    server = await start_server()
    status, answer = await server.get("/v1/nothing")
    assert (status, answer["error"]["code"]) == (404, "unknown_url")
    assert "/v1/nothing" in answer["error"]["message"]
    status, answer = await server.get("/v1/completions")
    assert (status, answer["error"]["code"]) == (405, "method_not_allowed")
    assert "it takes POST" in answer["error"]["message"]


async def test_bad_input_does_not_disturb_a_stream(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    streaming = asyncio.create_task(server.stream_bytes("/v1/completions", {"prompt": "undisturbed"}))
    await eventually(lambda: len(engine.running) == 1)
    for body, *_ in COMPLETIONS:
        if engine.num_steps < 5:
            engine.step()
        await server.post_raw("/v1/completions", json.dumps(body).encode())
    assert len(engine.submitted) == 1
    engine.step(20)
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks_of(await streaming))
    assert text == "undisturbed"


async def test_an_unforeseen_error_keeps_its_details_to_the_log(start_server: StartServer) -> None:
    def respond(*_: object) -> list[int]:
        raise LookupError("the secret")

    engine = FakeEngineClient(respond=respond)
    server = await start_server(engine)
    status, answer = await server.post("/v1/completions", {"prompt": "a"})
    assert (status, answer["error"]["type"], answer["error"]["code"]) == (500, "server_error", "internal_error")
    assert "secret" not in answer["error"]["message"]


def test_bytes_of_a_header_that_are_no_text_can_be_repeated() -> None:
    assert shorten("a\udcff") == '"a?"'


async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*args: object, **options: object) -> list[int]:
        raise AssertionError("the text was tokenised")

    monkeypatch.setattr("tests.fakes.text_model.FakeTokenizer.encode", encode)
    status, body = await server.post("/v1/completions", {"prompt": "x" * 4 * 512})
    assert status == 400
    assert body["error"]["param"] == "prompt"
    assert "2048 characters and so at least 512 tokens" in body["error"]["message"]
    messages = [{"role": "user", "content": "x" * 4 * 512}]
    status, body = await server.post("/v1/chat/completions", {"messages": messages})
    assert (status, body["error"]["param"]) == (400, "messages")


async def test_a_made_up_key_is_not_sent_back_at_any_length(start_server: StartServer) -> None:
    server = await start_server(strict_parameters=True)
    status, body = await server.post("/v1/completions", {"prompt": "a", "k" * 100_000: 1})
    assert (status, body["error"]["param"]) == (400, "k" * 64)
    assert len(body["error"]["message"]) < 500
