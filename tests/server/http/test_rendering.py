"""What requests would give to the engine, as routers ask."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "é?"}], "return_token_ids": True, "max_tokens": 3}


async def test_the_tokens_are_those_that_the_answer_has(server: RunningServer) -> None:
    _, answer = await server.post("/v1/chat/completions", CHAT)
    num_submitted = len(server.engine.submitted)
    status, rendered = await server.post(
        "/v1/chat/completions/render", {**CHAT, "cache_salt": "s", "request_id": "mine", "temperature": 0.5}
    )
    assert status == 200, rendered
    assert rendered["token_ids"] == answer["prompt_token_ids"]
    assert (rendered["request_id"], rendered["model"], rendered["cache_salt"]) == ("mine", "fake", "s")
    assert rendered["sampling_params"].items() >= {"max_tokens": 3, "temperature": 0.5, "n": 1}.items()
    assert len(server.engine.submitted) == num_submitted


async def test_each_prompt_has_its_entry_in_order(server: RunningServer) -> None:
    body = {"prompt": ["abc", "é"], "truncate_prompt_tokens": 2, "n": 2}
    status, rendered = await server.post("/v1/completions/render", body)
    assert status == 200, rendered
    assert [entry["token_ids"] for entry in rendered] == [[*b"bc"], [*"é".encode()]]
    assert {entry["sampling_params"]["n"] for entry in rendered} == {2}
    assert len({entry["request_id"] for entry in rendered}) == 1


async def test_a_long_prompt(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(max_model_len=5000))
    status, rendered = await server.post("/v1/completions/render", {"prompt": "a" * 4000})
    assert (status, len(rendered[0]["token_ids"])) == (200, 4000)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "a" * 600}, "prompt"),
        ("/v1/completions", {"prompt": "a", "temperature": 9}, "temperature"),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 1000}, "max_tokens"),
        ("/v1/chat/completions", {**CHAT, "model": "none"}, "model"),
    ],
)
async def test_what_the_route_itself_refuses_is_refused_alike(
    server: RunningServer, path: str, body: dict[str, Any], param: str
) -> None:
    status, error = await server.post(path + "/render", body)
    assert (status, error) == await server.post(path, body)
    assert error["error"]["param"] == param
