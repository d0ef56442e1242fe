"""Many generations at once on one WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

import pytest

from server.http.streams.generation_socket import MAX_GENERATIONS
from server.serving import submit
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import EOS, FakeTextModel, render
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.support.socket_client import open_socket, read_to_end, receive, send


async def test_one_generation_from_start_to_done(server: RunningServer) -> None:
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", prompt="tidé", return_token_ids=True)
        start, *deltas, done = await read_to_end(socket, "a")
    assert start.pop("stream_id")
    assert start == {"type": "start", "id": "a", "model": "fake", "usage": {"prompt_tokens": 5}}
    assert all(delta.keys() == {"type", "id", "index", "text", "token_ids"} for delta in deltas)
    assert all((delta["type"], delta["id"], delta["index"]) == ("delta", "a", 0) for delta in deltas)
    assert "".join(delta["text"] for delta in deltas) == "tidé"
    assert [token_id for delta in deltas for token_id in delta["token_ids"]] == [*"tidé".encode(), EOS]
    assert done == {
        "type": "done",
        "id": "a",
        "finish_reason": "stop",
        "stop_reason": None,
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 6,
            "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_messages_and_an_id_used_again(server: RunningServer) -> None:
    async with open_socket(server) as socket:
        for _ in range(2):
            await send(socket, type="generate", id="a", messages=[{"role": "user", "content": "hi"}])
            messages = await read_to_end(socket, "a")
            text = "".join(message.get("text", "") for message in messages)
            assert text == render({"role": "user", "content": "hi"})


async def test_twenty_at_once_with_some_cancelled(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    cancelled = {"g3", "g7", "g11", "g19"}
    texts: dict[str, str] = defaultdict(str)
    terminal: dict[str, dict[str, Any]] = {}
    async with open_socket(server) as socket:
        for number in range(20):
            await send(socket, type="generate", id=f"g{number}", prompt=f"story number {number}")
        await eventually(lambda: len(engine.running) == 20)
        engine.step(5)
        for client_id in sorted(cancelled):
            await send(socket, type="cancel", id=client_id)
        await eventually(lambda: len(engine.running) == 16)
        engine.step(50)
        while len(terminal) < 20:
            message = await receive(socket)
            assert message["id"] not in terminal
            if message["type"] == "delta":
                texts[message["id"]] += message["text"]
            elif message["type"] != "start":
                terminal[message["id"]] = message
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(socket.recv(), 0.02)
    for number in range(20):
        client_id = f"g{number}"
        done = terminal[client_id]
        assert done["type"] == "done"
        if client_id in cancelled:
            assert done["finish_reason"] == "abort"
            assert texts[client_id] == "story"
            assert done["usage"]["completion_tokens"] == 5
        else:
            assert done["finish_reason"] == "stop"
            assert texts[client_id] == f"story number {number}"
    assert len(engine.aborted) == 4


async def test_a_cancel_right_behind_its_generate(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(is_manual=True))
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", prompt="x")
        await send(socket, type="cancel", id="a")
        done = (await read_to_end(socket, "a"))[-1]
        assert (done["type"], done["finish_reason"]) == ("done", "abort")
        assert done["usage"]["completion_tokens"] == 0


async def test_several_choices(server: RunningServer) -> None:
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", prompt=["ab", "cdef"], n=2, max_tokens=3)
        _, *deltas, done = await read_to_end(socket, "a")
    texts = [""] * 4
    for delta in deltas:
        texts[delta["index"]] += delta["text"]
    assert texts == ["ab", "ab", "cde", "cde"]
    assert done["finish_reasons"] == ["stop", "stop", "length", "length"]
    assert done["finish_reason"] == "length"
    assert done["stop_reasons"] == [None] * 4


async def test_what_has_ended_an_answer(server: RunningServer) -> None:
    async with open_socket(server) as socket:
        for asked, stop_reason in (({"stop": "c"}, "c"), ({"stop_token_ids": [ord("d")]}, ord("d")), ({}, None)):
            await send(socket, type="generate", id="a", prompt="abcdef", **asked)
            done = (await read_to_end(socket, "a"))[-1]
            assert (done["finish_reason"], done["stop_reason"]) == ("stop", stop_reason)


async def test_a_duplicate_id_does_not_harm_the_running_one(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", prompt="abc")
        assert (await receive(socket))["type"] == "start"
        await send(socket, type="generate", id="a", prompt="xyz")
        error = await receive(socket)
        assert (error["type"], error["id"], error["error"]["code"]) == ("error", "a", "duplicate_id")
        assert error["error"]["param"] == "id"
        engine.step(10)
        messages = await read_to_end(socket, "a")
        assert "".join(message.get("text", "") for message in messages) == "abc"
        assert messages[-1]["finish_reason"] == "stop"


BAD_FRAMES: list[tuple[Any, str | None, str | None, str, str]] = [
    # what is sent, the error's id, param, code, and words of its message
    ("{", None, None, "invalid_json", "not valid JSON"),
    ("[1]", None, None, "invalid_type", "must be an object"),
    (b"\x00\x01", None, None, "binary_frame", "must be text"),
    ({"type": "generate", "prompt": "x"}, None, "id", "invalid_value", "id is null"),
    ({"type": "generate", "id": 5, "prompt": "x"}, None, "id", "invalid_value", "id is 5"),
    ({"type": "generate", "id": "x" * 129, "prompt": "x"}, None, "id", "invalid_value", "1 to 128"),
    ({"id": "a"}, "a", "type", "missing_required_parameter", "type is required"),
    ({"id": "a", "type": "dance"}, "a", "type", "invalid_value", "generate, cancel or resume"),
    ({"id": "a", "type": "cancel"}, "a", "id", "unknown_id", '"a"'),
    ({"id": "a", "type": "cancel", "x": 1}, "a", "x", "unknown_parameter", '"x"'),
    ({"id": "a", "type": "generate"}, "a", "prompt", "missing_required_parameter", "prompt is required"),
    ({"id": "a", "type": "generate", "prompt": ""}, "a", "prompt", "invalid_value", "empty"),
    ({"id": "a", "type": "generate", "prompt": "x" * 600}, "a", "prompt", "context_length_exceeded", "512 tokens"),
    ({"id": "a", "type": "generate", "prompt": [999]}, "a", "prompt", "invalid_value", "999"),
    ({"id": "a", "type": "generate", "prompt": "x", "stopp": 1}, "a", "stopp", "unknown_parameter", "stop"),
    ({"id": "a", "type": "generate", "prompt": "x", "top_p": 2}, "a", "top_p", "invalid_value", "top_p is 2"),
    ({"id": "a", "type": "generate", "prompt": "x", "model": "y"}, "a", "model", "model_not_found", '"y"'),
    ({"id": "a", "type": "generate", "prompt": "x", "stream": False}, "a", "stream", "invalid_value", "streams"),
    ({"id": "a", "type": "generate", "prompt": "x", "messages": []}, "a", "prompt", "invalid_value", "both"),
    ({"id": "a", "type": "generate", "messages": []}, "a", "messages", "invalid_value", "messages"),
    ("x" * 5000, None, None, "body_too_large", "4000 bytes"),
    ("[" * 400 + "]" * 400, None, None, "invalid_type", "nested too deeply"),
    ('{"id":' + "[" * 400 + "]" * 400 + "}", None, "id", "invalid_value", "nested too deeply"),
    ('{"id":"a","type":' + "[" * 400 + "]" * 400 + "}", "a", "type", "invalid_value", "nested too deeply"),
]


async def test_bad_frames_are_answered_and_disturb_nobody(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, max_body_bytes=4000)
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="running", prompt="undisturbed")
        assert (await receive(socket))["type"] == "start"
        for frame, client_id, param, code, words in BAD_FRAMES:
            await socket.send(json.dumps(frame) if isinstance(frame, dict) else frame)
            error = await receive(socket)
            assert error.keys() == {"type", "id", "error"}
            sizes = {"n_prompt_tokens", "n_ctx"} if code == "context_length_exceeded" else set()
            assert error["error"].keys() == {"message", "type", "param", "code"} | sizes
            got = (error["type"], error["id"], error["error"]["param"], error["error"]["code"])
            assert got == ("error", client_id, param, code), error
            assert words in error["error"]["message"]
        engine.step(20)
        messages = await read_to_end(socket, "running")
        assert "".join(message.get("text", "") for message in messages) == "undisturbed"
    assert len(engine.submitted) == 1


async def test_too_many_at_once(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with open_socket(server, max_queue=None) as socket:
        for number in range(MAX_GENERATIONS + 1):
            await send(socket, type="generate", id=str(number), prompt="x")
        error = (await read_to_end(socket, str(MAX_GENERATIONS)))[-1]
        assert error["error"]["code"] == "too_many_generations"
        assert "256" in error["error"]["message"]
        await eventually(lambda: len(engine.running) == MAX_GENERATIONS)
    await server.assert_all_streams_ended()


async def test_deltas_merge_while_the_reader_is_slow(start_server: StartServer) -> None:
    """Nothing is lost, and what waits is one delta per generation, not one per token."""
    num_tokens = 3000
    engine = FakeEngineClient(
        respond=lambda *_: [97 + position % 26 for position in range(num_tokens)], is_manual=True, max_model_len=4000
    )
    text_model = FakeTextModel()
    text_model.tokenizer.token_bytes = tuple(bytes([value]) * 4096 for value in range(256)) + (b"",) * 4
    server = await start_server(engine, text_model=text_model)
    async with open_socket(server, max_size=None, max_queue=1) as socket:
        await send(socket, type="generate", id="a", prompt="x", max_tokens=num_tokens)
        await eventually(lambda: len(engine.running) == 1)
        while engine.running:
            engine.step(5)
            await asyncio.sleep(0)
        messages = await read_to_end(socket, "a")
    token_ids = [token_id for message in messages for token_id in message.get("token_ids", ())]
    assert token_ids == [97 + position % 26 for position in range(num_tokens)]
    assert max(len(message.get("token_ids", ())) for message in messages) > 50
    assert messages[-1]["finish_reason"] == "length"


async def test_an_engine_failure_is_one_error_for_each_id(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with open_socket(server) as socket:
        for client_id in ("a", "b"):
            await send(socket, type="generate", id=client_id, prompt="xyz")
        await eventually(lambda: len(engine.running) == 2)
        engine.step()
        engine.fail("the device is gone")
        errors: dict[str, str] = {}
        while len(errors) < 2:
            message = await receive(socket)
            if message["type"] == "error":
                errors[message["id"]] = message["error"]["message"]
        assert errors == {"a": "the device is gone", "b": "the device is gone"}


async def test_while_loading_each_id_gets_an_error(start_server: StartServer) -> None:
    server = await start_server(is_open=False)
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", prompt="x")
        error = await receive(socket)
    assert (error["type"], error["id"], error["error"]["code"]) == ("error", "a", "loading")


async def test_a_resumable_generation_that_is_cancelled_at_once_ends(server: RunningServer) -> None:
    """Its task has not begun to run when the cancellation comes."""
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", prompt="ab", resumable=True)
        await send(socket, type="cancel", id="a")
        assert (await receive(socket))["type"] == "error"
    assert server.served.num_generations == 0


async def test_a_resumable_generation_is_cancelled_while_its_prompt_is_prepared(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, came = asyncio.Event(), asyncio.Event()
    prepare = submit.prepare

    async def prepare_late(*arguments: Any) -> Any:
        came.set()
        await goes_on.wait()
        return await prepare(*arguments)

    monkeypatch.setattr(submit, "prepare", prepare_late)
    server = await start_server(FakeEngineClient(is_manual=True))
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", prompt="abcdefgh", resumable=True)
        await came.wait()
        await send(socket, type="cancel", id="a")
        terminal = await receive(socket)
        goes_on.set()
    assert terminal["type"] == "error"
    await eventually(lambda: server.served.num_generations == 0)
