"""Limits of keys on every transport, their headers, and what keys have used."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from engine.interface.types import Pooling, QueueFull
from server.api.openapi.answers import KeyUsages
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually, still_limits
from tests.server.http.test_queries import EmbeddingEngine

pytestmark = pytest.mark.usefixtures(still_limits.__name__)

ANN, BEN, ADMIN = "key-of-ann", "key-of-ben", "admin-secret-3"
BODY = {"prompt": "abc", "max_tokens": 4}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": BODY,
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4},
    "/v1/responses": {"input": "a", "max_output_tokens": 4, "store": False},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "model": "fake"},
}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def post(
    server: RunningServer, body: Any = BODY, key: str = ANN, path: str = "/v1/completions"
) -> tuple[int, Any, dict[str, str]]:
    async with server.http.post(server.url + path, json=body, headers=bearer(key)) as response:
        return response.status, await response.json(), {name.lower(): text for name, text in response.headers.items()}


async def usage(server: RunningServer, method: str = "GET", path: str = "/admin/usage") -> dict[str, Any]:
    async with server.http.request(method, server.url + path, headers=bearer(ADMIN)) as response:
        assert response.status == 200
        body = await response.json()
    KeyUsages.model_validate(body)  # as the OpenAPI document has it
    return {entry["name"]: entry for entry in body["data"]}


@pytest.mark.parametrize("path", ROUTES)
async def test_requests_beyond_the_rate_are_refused_in_the_form_of_their_route(
    start_server: StartServer, path: str
) -> None:
    server = await start_server(FakeEngineClient(), api_keys=(f"{ANN} ann - 0.01", f"{BEN} ben"))
    body = {**ROUTES[path], "model": server.served.names[0]}
    status, _, headers = await post(server, body, path=path)
    assert status == 200
    assert headers["x-ratelimit-limit-requests"] == "1"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-reset-requests"].startswith(("1m39", "1m40s"))
    assert "x-ratelimit-limit-tokens" not in headers
    status, answer, headers = await post(server, body, path=path)
    assert status == 429
    assert 90 <= int(headers["retry-after"]) <= 100
    assert headers["x-ratelimit-remaining-requests"] == "0"
    error = answer["error"]
    assert "Rate limit reached for the key ann on requests per second: limit 0.01" in error["message"]
    if path == "/v1/messages":
        assert (answer["type"], error["type"]) == ("error", "rate_limit_error")
        assert headers["anthropic-ratelimit-requests-limit"] == "1"
        assert headers["anthropic-ratelimit-requests-reset"].endswith("Z")
    else:
        assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    status, _, headers = await post(server, body, BEN, path)
    assert status == 200
    assert not any(name.startswith("x-ratelimit") for name in headers)


async def test_reading_and_cancelling_are_not_counted(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(), api_keys=(f"{ANN} ann - 0.01",))
    for _ in range(3):
        async with server.http.get(f"{server.url}/v1/models", headers=bearer(ANN)) as response:
            assert response.status == 200
            assert response.headers["x-ratelimit-remaining-requests"] == "1"
        async with server.http.post(f"{server.url}/v1/requests/none/cancel", headers=bearer(ANN)) as response:
            assert response.status == 404


async def test_tokens_of_prompt_and_answer_are_counted(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(), api_keys=(f"{ANN} ann - - - 20",), admin_keys=(ADMIN,))
    status, answer, headers = await post(server)
    assert status == 200
    used = answer["usage"]["total_tokens"]
    async with server.http.get(f"{server.url}/v1/models", headers=bearer(ANN)) as response:
        assert response.headers["x-ratelimit-limit-tokens"] == "20"
        assert int(response.headers["x-ratelimit-remaining-tokens"]) == 20 - used
    status, answer, headers = await post(server, {"prompt": "abc", "max_tokens": 16})
    assert status == 429
    assert (answer["error"]["type"], answer["error"]["code"]) == ("tokens", "rate_limit_exceeded")
    assert 1 <= int(headers["retry-after"]) <= 60
    # More than a minute has is never possible.
    status, answer, headers = await post(server, {"prompt": "abc", "max_tokens": 40})
    assert status == 429
    assert "Request too large" in answer["error"]["message"]
    assert "retry-after" not in headers
    ann = (await usage(server))["ann"]
    assert (ann["input_tokens"] + ann["output_tokens"], ann["num_refused_requests"]) == (used, 2)


@pytest.mark.parametrize("path", ROUTES)
async def test_what_an_answer_may_take_counts_before_it_is_made(start_server: StartServer, path: str) -> None:
    server = await start_server(FakeEngineClient(), api_keys=(f"{ANN} ann - - - 300",))
    large = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 350}
    status, answer, _ = await post(server, {**ROUTES[path], **large, "model": server.served.names[0]}, path=path)
    assert status == 429
    assert "Request too large" in answer["error"]["message"]
    assert (await post(server, {**ROUTES[path], "model": server.served.names[0]}, path=path))[0] == 200


async def test_embeddings_count(start_server: StartServer) -> None:
    server = await start_server(EmbeddingEngine(), api_keys=(f"{ANN} ann - - - 10",), admin_keys=(ADMIN,))
    status, answer, _ = await post(server, {"input": "abcdef"}, path="/v1/embeddings")
    assert (status, answer["usage"]["total_tokens"]) == (200, 6)
    status, answer, _ = await post(server, {"input": "abcdef"}, path="/v1/embeddings")
    assert (status, answer["error"]["type"]) == (429, "tokens")
    assert (await usage(server))["ann"]["input_tokens"] == 6


async def test_embeddings_that_fail_cost_nothing(start_server: StartServer) -> None:
    class BusyEngine(EmbeddingEngine):
        is_busy = True

        async def embed(self, token_ids: Any, pooling: Pooling, **options: Any) -> np.ndarray:
            if self.is_busy:
                raise QueueFull("too many requests wait")
            return await super().embed(token_ids, pooling, **options)

    engine = BusyEngine()
    server = await start_server(engine, api_keys=(f"{ANN} ann - - - 10",), admin_keys=(ADMIN,))
    assert (await post(server, {"input": "abcdef"}, path="/v1/embeddings"))[0] == 429
    assert (await usage(server))["ann"]["input_tokens"] == 0
    engine.is_busy = False
    assert (await post(server, {"input": "abcdef"}, path="/v1/embeddings"))[0] == 200


async def test_streams_at_once_are_limited_and_free_again_when_they_end(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, api_keys=(f"{ANN} ann - - 1",), admin_keys=(ADMIN,))
    streaming = asyncio.create_task(post(server))
    await eventually(lambda: len(engine.running) == 1)
    async with server.http.ws_connect(f"{server.url}/v1/stream", headers=bearer(ANN)) as socket:
        await socket.send_json({"type": "generate", "id": "a", **BODY})
        assert (await socket.receive_json())["error"]["code"] == "rate_limit_exceeded"
    status, answer, headers = await post(server)
    assert (status, answer["error"]["type"], headers["retry-after"]) == (429, "requests", "1")
    assert "streams at once: limit 1, used 1" in answer["error"]["message"]
    assert (await usage(server))["ann"]["num_streams"] == 1
    streaming.cancel()
    await eventually(lambda: not engine.running)
    again = asyncio.create_task(post(server))
    await eventually(lambda: len(engine.running) == 1)
    again.cancel()


@pytest.mark.parametrize("answers", [{"n": 3}, {"prompt": ["a", "b", "c"]}, {"best_of": 3}], ids=str)
async def test_each_answer_of_a_request_is_a_stream(start_server: StartServer, answers: dict[str, Any]) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, api_keys=(f"{ANN} ann - - 4", f"{BEN} ben - - 2"), admin_keys=(ADMIN,))
    running = asyncio.create_task(post(server, {**BODY, **answers}))
    await eventually(lambda: len(engine.running) == 3)
    assert (await usage(server))["ann"]["num_streams"] == 3
    status, answer, headers = await post(server, {**BODY, **answers})
    assert (status, answer["error"]["code"], headers["retry-after"]) == (429, "rate_limit_exceeded", "1")
    assert "streams at once: limit 4, used 3, requested 3" in answer["error"]["message"]
    # More than may ever run at once is never possible.
    status, answer, headers = await post(server, {**BODY, **answers}, BEN)
    assert (status, "retry-after" in headers) == (429, False)
    assert answer["error"]["message"].endswith("Its prompts or the answers to each (n) must be reduced.")
    running.cancel()
    await eventually(lambda: not engine.running)
    assert (await usage(server))["ann"]["num_streams"] == 0


async def test_messages_of_a_socket_are_counted(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(), api_keys=(f"{ANN} ann - 0.01",))
    async with server.http.ws_connect(f"{server.url}/v1/responses", headers=bearer(ANN)) as socket:
        message = {"type": "response.create", "input": "a", "store": False, "model": server.served.names[0]}
        for _ in range(2):
            await socket.send_json(message)
        codes = []
        async with asyncio.timeout(PATIENCE_S):
            while "rate_limit_exceeded" not in codes:
                event = await socket.receive_json()
                codes.append((event.get("error") or {}).get("code"))


async def test_usage_is_shown_by_name_and_reset(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(), api_keys=(f"{ANN} ann", f"{BEN} ben - 5 6 7"), admin_keys=(ADMIN,))
    _, answer, _ = await post(server)
    counts = await usage(server)
    assert set(counts) == {"ann", "ben", "admin"}
    assert counts["ann"]["num_model_requests"] == 1
    assert counts["ann"]["input_tokens"] == answer["usage"]["prompt_tokens"]
    assert counts["ann"]["output_tokens"] == answer["usage"]["completion_tokens"]
    assert counts["ben"]["limits"] == {"requests_per_second": 5, "max_streams": 6, "tokens_per_minute": 7}
    async with server.http.get(f"{server.url}/metrics", headers=bearer(ADMIN)) as response:
        page = await response.text()
    assert 'eagre_key_requests_total{key="ann"} 1.0' in page
    assert ANN not in page
    assert (await usage(server, "POST", "/admin/usage/reset"))["ann"]["num_model_requests"] == 1
    assert (await usage(server))["ann"]["num_model_requests"] == 0
    async with server.http.get(f"{server.url}/admin/usage", headers=bearer(ANN)) as response:
        assert response.status == 403
