"""How long an answer took, and the usage in every chunk, on each route that can tell it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.conftest import RunningServer
from tests.server.support.socket_client import open_socket, read_to_end, send
from tests.server.support.sse_reader import chunks_of

NAMES = {"time_to_first_token_ms", "queue_time_ms", "generation_time_ms", "mean_itl_ms", "tokens_per_second"}
PATHS = {
    "/v1/completions": {"prompt": "tide"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "tide"}]},
}


def check(metrics: dict[str, float], num_tokens: int) -> None:
    assert metrics.keys() == NAMES
    assert metrics["time_to_first_token_ms"] >= metrics["queue_time_ms"] >= 0
    whole = metrics["queue_time_ms"] + metrics["generation_time_ms"]
    assert whole >= metrics["time_to_first_token_ms"] - 0.002  # each is rounded to a microsecond
    if num_tokens == 1:
        assert metrics["mean_itl_ms"] is None
    else:
        between = whole - metrics["time_to_first_token_ms"]
        assert metrics["mean_itl_ms"] == pytest.approx(between / (num_tokens - 1), abs=0.005)
    assert metrics["tokens_per_second"] == pytest.approx(1e3 * num_tokens / metrics["generation_time_ms"], rel=0.05)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("max_tokens", [1, 4])
async def test_a_whole_answer_tells_it(server: RunningServer, path: str, max_tokens: int) -> None:
    _, answer = await server.post(path, {**PATHS[path], "max_tokens": max_tokens, "include_metrics": True})
    check(answer["metrics"], answer["usage"]["completion_tokens"])
    _, answer = await server.post(path, {**PATHS[path], "max_tokens": max_tokens})
    assert answer["metrics"] is None


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("with_usage", [False, True])
async def test_the_last_chunk_of_a_stream_tells_it(server: RunningServer, path: str, with_usage: bool) -> None:
    body: dict[str, Any] = {**PATHS[path], "max_tokens": 4, "include_metrics": True}
    if with_usage:
        body["stream_options"] = {"include_usage": True}
    *others, last = chunks_of(await server.stream_bytes(path, body))
    assert last["choices"] == []
    assert ("usage" in last) == with_usage
    assert not any("metrics" in chunk for chunk in others)
    check(last["metrics"], 4)


async def test_a_socket_tells_it_at_the_end(server: RunningServer) -> None:
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="x", prompt="tide", max_tokens=4, include_metrics=True)
        *_, done = await read_to_end(socket, "x")
        check(done["metrics"], 4)
        await send(socket, type="generate", id="y", prompt="tide", max_tokens=4)
        *_, done = await read_to_end(socket, "y")
        assert "metrics" not in done


async def test_several_answers_have_none(server: RunningServer) -> None:
    _, answer = await server.post("/v1/completions", {"prompt": "tide", "n": 2, "include_metrics": True})
    assert answer["metrics"] is None


@pytest.mark.parametrize("path", PATHS)
async def test_usage_goes_on_with_every_chunk(server: RunningServer, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**PATHS[path], "max_tokens": 4, "stream_options": options}
    chunks = chunks_of(await server.stream_bytes(path, body))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0] >= 1, counts[-1]) == (True, 4)
    del options["include_usage"]  # as in vLLM, the one asks for nothing without the other
    chunks = chunks_of(await server.stream_bytes(path, body))
    assert not any("usage" in json.dumps(chunk) for chunk in chunks)
