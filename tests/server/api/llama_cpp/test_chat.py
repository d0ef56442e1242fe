"""Chat completions without /v1, as llama.cpp's server makes them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer
from tests.server.support.sse_reader import chunks_of

PATH = "/chat/completions"
ASKED = {"role": "user", "content": "tide"}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


async def prompt_of(server: RunningServer, *messages: dict[str, Any], path: str = PATH, **more: Any) -> str:
    status, answer = await server.post(path, {"messages": [ASKED, *messages], "max_tokens": 2, **more})
    assert status == 200, answer
    return bytes(server.engine.submitted[-1].prompt_token_ids).decode()


@pytest.mark.parametrize("content", ["Whi", [{"type": "text", "text": "Whi"}]])
async def test_an_assistants_message_at_the_end_is_continued(server: RunningServer, content: Any) -> None:
    assert await prompt_of(server, assistant(content)) == "user:tide\nassistant:Whi"
    _, shown = await server.post("/apply-template", {"messages": [ASKED, assistant(content)]})
    assert shown["prompt"] == "user:tide\nassistant:Whi"


async def test_it_begins_another_turn_where_the_request_says_so_or_it_calls(server: RunningServer) -> None:
    ended = "user:tide\nassistant:Whi\nassistant:"
    assert await prompt_of(server, assistant("Whi"), path="/v1/chat/completions") == ended
    assert await prompt_of(server, assistant("Whi"), add_generation_prompt=True) == ended
    assert await prompt_of(server, assistant("Whi"), continue_final_message=False) == ended
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert (await prompt_of(server, assistant("Whi", tool_calls=[call]))).endswith("\nassistant:")


async def test_two_beginnings_are_refused(server: RunningServer) -> None:
    for path in (PATH, "/apply-template"):
        status, answer = await server.post(path, {"messages": [ASKED, assistant("a"), assistant("b")]})
        assert (status, answer["error"]["param"]) == (400, "messages")


async def test_a_stream_begins_with_the_role_and_ends_with_the_reason(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=lambda *_: list(b"abc")))
    body = {"messages": [ASKED], "n": 2, "stream_options": {"include_usage": True}, "timings_per_token": True}
    chunks = chunks_of(await server.stream_bytes(PATH, body))
    role = {"role": "assistant", "content": None}
    assert [(chunk["choices"][0]["index"], chunk["choices"][0]["delta"]) for chunk in chunks[:2]] == [
        (0, role),
        (1, role),
    ]
    assert not any("timings" in chunk for chunk in chunks[:2])
    for index in (0, 1):
        told = [each for chunk in chunks[2:-1] for each in chunk["choices"] if each["index"] == index]
        assert "".join(each["delta"].get("content", "") for each in told) == "abc"
        assert not any("role" in each["delta"] for each in told)
        assert [(each["delta"], each["finish_reason"]) for each in told if each["finish_reason"]] == [({}, "stop")]
    assert chunks[-1]["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("text", ["a <tool_ca", "a"])
async def test_what_was_held_back_comes_before_the_reason(start_server: StartServer, text: str) -> None:
    server = await start_server(FakeEngineClient(respond=lambda *_: list(text.encode())), tool_call_parser="hermes")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"messages": [ASKED], "tools": [tool], "logprobs": True}
    chunks = [chunk["choices"][0] for chunk in chunks_of(await server.stream_bytes(PATH, body))]
    assert "".join(each["delta"].get("content") or "" for each in chunks) == text
    assert (chunks[-1]["delta"], chunks[-1]["finish_reason"]) == ({}, "stop")
    tokens = [token for each in chunks for token in (each["logprobs"] or {}).get("content", [])]
    assert "".join(token["token"] for token in tokens[:-1]) == text


async def test_slots_can_be_taken_away(start_server: StartServer) -> None:
    server = await start_server(no_slots=True)
    status, answer = await server.get("/slots")
    assert (status, answer["error"]["type"]) == (501, "not_supported_error")
