"""llama.cpp's `timings`, on every route whose answers can have them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.conftest import RunningServer
from tests.server.support.responses_judge import parse_sse
from tests.server.support.socket_client import open_socket, read_to_end, send
from tests.server.support.sse_reader import chunks_of

NAMES = {"cache_n", "prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_second"}
PATHS = {
    "/v1/completions": {"prompt": "tide"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "tide"}]},
}


@pytest.mark.parametrize("path", PATHS)
async def test_a_whole_answer_has_them(server: RunningServer, path: str) -> None:
    _, answer = await server.post(path, {**PATHS[path], "max_tokens": 3, "timings_per_token": True})
    assert answer["timings"].keys() >= NAMES
    assert answer["timings"]["predicted_n"] == 3
    _, answer = await server.post(path, {**PATHS[path], "max_tokens": 3})
    assert "timings" not in answer


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "usage", [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
async def test_every_chunk_has_them(server: RunningServer, path: str, usage: dict[str, bool] | None) -> None:
    body: dict[str, Any] = {**PATHS[path], "max_tokens": 3, "timings_per_token": True, "stream_options": usage}
    chunks = chunks_of(await server.stream_bytes(path, body))
    assert all(chunk["timings"].keys() >= NAMES for chunk in chunks)
    counts = [chunk["timings"]["predicted_n"] for chunk in chunks]
    assert (counts, counts[-1]) == (sorted(counts), 3)
    assert ("usage" in chunks[0]) == (usage is not None)
    assert (chunks[-1]["choices"] == []) == (usage is not None)


async def test_they_are_in_messages_of_a_socket(server: RunningServer) -> None:
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="x", prompt="tide", max_tokens=3, timings_per_token=True)
        _, *deltas, done = await read_to_end(socket, "x")
    assert all(message["timings"].keys() >= NAMES for message in (*deltas, done))
    assert done["timings"]["predicted_n"] == 3


@pytest.mark.parametrize("more", [{}, {"top_logprobs": 1}])
async def test_they_are_in_the_events_of_a_responses_text_and_in_the_last(
    server: RunningServer, more: dict[str, Any]
) -> None:
    body = {"input": "tide", "stream": True, "max_output_tokens": 3, "timings_per_token": True, **more}
    events = parse_sse(await server.stream_bytes("/v1/responses", body))
    telling = {event["type"] for event in events if "timings" in event}
    assert telling == {"response.output_text.delta", "response.incomplete"}
    assert events[-1]["timings"]["predicted_n"] == 3
    del body["timings_per_token"]
    assert b"timings" not in await server.stream_bytes("/v1/responses", body)


async def test_a_switch_that_is_none_is_named(server: RunningServer) -> None:
    status, answer = await server.post("/v1/completions", {"prompt": "a", "timings_per_token": 1})
    assert (status, answer["error"]["param"]) == (400, "timings_per_token")
    assert json.dumps(answer).count("true or false") == 1
