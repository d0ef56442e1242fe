"""Names and values that clients of other servers know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import EOS
from tests.server.conftest import RunningServer, StartServer
from tests.server.support.socket_client import open_socket, read_to_end, send

CHAT = {"messages": [{"role": "user", "content": "x"}]}


def saying(text: str) -> FakeEngineClient:
    return FakeEngineClient(respond=lambda *_: [*text.encode(), EOS])


async def events(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    text = (await server.stream_bytes(path, body)).decode()
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "seed": -1}),
        ("/v1/chat/completions", {**CHAT, "seed": -1}),
        ("/v1/responses", {"input": "a", "seed": -1}),
        ("/completion", {"prompt": "a", "seed": -1}),
        ("/api/generate", {"model": "fake", "prompt": "a", "options": {"seed": -1}, "stream": False}),
    ],
)
async def test_minus_one_is_a_random_seed(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    status, _ = await server.post(path, body)
    assert (status, server.engine.submitted[-1].params.seed) == (200, None)


async def test_minus_two_is_a_seed_whose_further_answers_have_others(server: RunningServer) -> None:
    await server.post("/v1/completions", {"prompt": "a", "seed": -2, "n": 2})
    assert [each.params.seed for each in server.engine.submitted[-2:]] == [-2, -1]


@pytest.mark.parametrize(
    ("more", "stop_reason", "matched_stop"),
    [
        ({}, None, EOS),
        ({"stop": ["c"]}, "c", "c"),
        ({"stop_token_ids": [99]}, 99, 99),
        ({"max_tokens": 2}, None, None),
    ],
)
@pytest.mark.parametrize(("path", "body"), [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", CHAT)])
async def test_a_choice_says_what_has_ended_it(
    start_server: StartServer,
    path: str,
    body: dict[str, Any],
    more: dict[str, Any],
    stop_reason: str | int | None,
    matched_stop: str | int | None,
) -> None:
    server = await start_server(saying("abcd"))
    _, answer = await server.post(path, {**body, **more})
    (choice,) = answer["choices"]
    assert (choice["stop_reason"], choice["matched_stop"]) == (stop_reason, matched_stop)
    *firsts, last = [event["choices"][0] for event in await events(server, path, {**body, **more})]
    assert (last["stop_reason"], last["matched_stop"]) == (stop_reason, matched_stop)
    assert not any("stop_reason" in first for first in firsts)


@pytest.mark.parametrize("name", ["use_beam_search", "mirostat", "num_beams"])
async def test_another_way_of_sampling_is_refused(server: RunningServer, name: str) -> None:
    value = True if name == "use_beam_search" else 2
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", CHAT)):
        status, answer = await server.post(path, {**body, name: value})
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "unsupported_parameter", name)


async def test_detokenized_control_tokens_have_their_names_unless_asked(server: RunningServer) -> None:
    body = {"tokens": [97, EOS, 98]}
    _, answer = await server.post("/detokenize", body)
    assert answer["prompt"].startswith("a<")
    _, answer = await server.post("/detokenize", {**body, "skip_special_tokens": True})
    assert answer["prompt"] == "ab"


async def test_half_a_character_at_the_end_is_left_out(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=lambda *_: [*"aé".encode()]))
    body = {"prompt": "x", "max_tokens": 2}
    _, answer = await server.post("/v1/completions", body)
    assert answer["choices"][0]["text"] == "a"
    assert "".join(event["choices"][0]["text"] for event in await events(server, "/v1/completions", body)) == "a"
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", **body)
        messages = await read_to_end(socket, "a")
    assert "".join(message.get("text", "") for message in messages) == "a"
