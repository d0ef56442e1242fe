"""best_of: more answers are generated than are returned, and the most probable ones are returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sampling.host.params import SamplingParams
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import StartServer

MESSAGES = [{"role": "user", "content": "x"}]


def by_seed(prompt_token_ids: Sequence[int], params: SamplingParams) -> Sequence[int]:
    """Seeds 10 … 13 write four texts; earlier letters are likelier. The first token tells which prompt."""
    texts = ("zz", "ab", "aaaaaaaa", "m")
    return [prompt_token_ids[0] % 2, *texts[(params.seed or 0) - 10].encode()]


@pytest.mark.parametrize(
    ("wish", "texts", "num_generated"),
    [
        ({}, ["zz"], 4),
        ({"best_of": 1}, ["zz"], 4),
        ({"best_of": 4}, ["aaaaaaaa"], 4 + 4 + 10 + 3),
        ({"best_of": 2}, ["ab"], 4 + 4),
        ({"best_of": 4, "n": 3}, ["aaaaaaaa", "ab", "m"], 4 + 4 + 10 + 3),
        ({"best_of": 2, "n": 2}, ["zz", "ab"], 4 + 4),
    ],
)
async def test_the_likeliest_by_token_come_first(
    start_server: StartServer, wish: dict[str, Any], texts: list[str], num_generated: int
) -> None:
    server = await start_server(FakeEngineClient(respond=by_seed))
    body = {"prompt": "\x02", "seed": 10, "max_tokens": 20, **wish}
    _, answer = await server.post("/v1/completions", body)
    assert [choice["text"].lstrip("\x00") for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))
    assert [choice["logprobs"] for choice in answer["choices"]] == [None] * len(texts)
    assert answer["usage"]["completion_tokens"] == num_generated
    del body["prompt"]
    _, answer = await server.post("/v1/chat/completions", {"messages": MESSAGES, **body})
    assert [choice["message"]["content"][1:] for choice in answer["choices"]] == texts


async def test_each_prompt_has_its_own_best(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=by_seed))
    body = {"prompt": ["\x02", "\x03"], "seed": 10, "n": 2, "best_of": 4, "return_token_ids": True, "logprobs": 1}
    _, answer = await server.post("/v1/completions", body)
    texts = ["\x00aaaaaaaa", "\x00ab", "\x01aaaaaaaa", "\x01ab"]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [[2], [2], [3], [3]]
    assert [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]] == [10, 4, 10, 4]
    assert answer["usage"]["prompt_tokens"] == 2


async def test_the_engine_is_asked_for_logprobs(start_server: StartServer) -> None:
    engine = FakeEngineClient(respond=by_seed)
    server = await start_server(engine)
    for wish, num_logprobs in (({"best_of": 2}, 0), ({"best_of": 2, "logprobs": 3}, 3), ({"best_of": 1}, None)):
        await server.post("/v1/completions", {"prompt": "x", "seed": 10, **wish})
        assert engine.submitted[-1].params.logprobs == num_logprobs


async def test_a_stream_may_say_what_asks_for_nothing(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=by_seed))
    data = await server.stream_bytes("/v1/completions", {"prompt": "x", "seed": 10, "n": 2, "best_of": 2})
    assert data.endswith(b"data: [DONE]\n\n")
