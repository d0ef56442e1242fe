"""A request that does not fit into the model's context is refused in the words by which each API's clients trim it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import RunningServer, StartServer
from tests.server.support.socket_client import open_socket, receive, send

LIMIT = 512  # tokens of the fake model's context
TEXT = "x" * 600
MESSAGES = [{"role": "user", "content": TEXT}]
SENTENCE = f"This model's maximum context length is {LIMIT} tokens"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": TEXT}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 600}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 600}),
        ("/v1/responses", {"input": TEXT}),
    ],
)
async def test_openais_code_and_sentence(server: RunningServer, path: str, body: dict[str, Any], stream: bool) -> None:
    status, answer = await server.post(path, {**body, "stream": stream})
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["message"].startswith(SENTENCE)


async def test_on_the_websocket(server: RunningServer) -> None:
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", prompt=TEXT)
        error = (await receive(socket))["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith(SENTENCE)


async def test_embeddings_name_their_input(server: RunningServer) -> None:
    for length in (LIMIT - 1, LIMIT + 1, 4 * LIMIT):
        status, answer = await server.post("/v1/embeddings", {"input": ["x", "x" * length]})
        assert (status, answer["error"]["param"]) == (400, "input")
        assert answer["error"]["code"] == "context_length_exceeded"
        assert answer["error"]["message"].startswith(SENTENCE)


async def test_anthropics_words(server: RunningServer) -> None:
    for stream in (False, True):
        body = {"max_tokens": 5, "messages": MESSAGES, "stream": stream}
        status, answer = await server.post("/v1/messages", body)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        words, _, rest = answer["error"]["message"].partition(": ")
        num_tokens, _, _, most, _ = rest.split()
        assert (words, rest.endswith(" maximum")) == ("prompt is too long", True)
        assert (int(num_tokens) > 600, int(most)) == (True, LIMIT)


async def test_ollamas_and_llama_cpps(server: RunningServer) -> None:
    status, answer = await server.post("/api/chat", {"model": "fake", "messages": MESSAGES})
    assert (status, answer["error"].startswith(SENTENCE)) == (400, True)
    status, answer = await server.post("/completion", {"prompt": TEXT})
    error = answer["error"]
    assert (status, error["type"]) == (400, "exceed_context_size_error")
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (600, LIMIT)


@pytest.mark.parametrize("stream", [False, True])
async def test_llama_cpps_clients_leave_the_version_out(server: RunningServer, stream: bool) -> None:
    for path, kind in (
        ("/chat/completions", "exceed_context_size_error"),
        ("/v1/chat/completions", "invalid_request_error"),
    ):
        status, answer = await server.post(path, {"messages": MESSAGES, "stream": stream})
        error = answer["error"]
        assert (status, error["type"], error["code"]) == (400, kind, "context_length_exceeded")
        assert error["n_prompt_tokens"] > 600
        assert error["n_ctx"] == LIMIT
    _, answer = await server.post("/messages", {"max_tokens": 5, "messages": MESSAGES})
    assert answer["error"]["type"] == "invalid_request_error"


async def test_a_prompt_that_leaves_no_room_for_a_token_is_over_the_maximum_that_is_named(
    start_server: StartServer,
) -> None:
    server = await start_server()
    _, counted = await server.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]})
    content = "x" * (LIMIT + 1 - counted["input_tokens"])
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": content}]}
    status, answer = await server.post("/v1/messages", body)
    assert status == 400
    assert f"{LIMIT} tokens > {LIMIT - 1} maximum" in answer["error"]["message"]
