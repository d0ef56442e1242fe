"""Reasoning budgets and strict calls on the default model, which is told to reason by a flag."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.client import EngineClient
from engine.engine import Engine
from engine.loop import Call
from engine.schedule.admission import preempt
from server.text.text_model import TextModel
from tests.server.support.real_server import RealServer, serving

MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
CHAT = "/v1/chat/completions"
ASK = {"messages": MESSAGES, "temperature": 1.0, "seed": 3, "max_tokens": 24, "return_token_ids": True}


@pytest.fixture
async def server(real_engine: Engine, text_model: TextModel) -> AsyncIterator[RealServer]:
    engine = EngineClient(real_engine)
    engine.start(asyncio.get_running_loop())
    async with serving(engine, text_model, reasoning_parser="deepseek_r1") as server:
        yield server
        await server.wait_idle()
    engine.shutdown()


async def choice_of(server: RealServer, **parameters: Any) -> dict[str, Any]:
    status, answer = await server.post(CHAT, {**ASK, **parameters})
    assert status == 200, answer
    choice: dict[str, Any] = {**answer["choices"][0], "prompt": answer["prompt_token_ids"], "usage": answer["usage"]}
    return choice


async def test_the_budget_ends_the_reasoning_and_nothing_else(server: RealServer, text_model: TextModel) -> None:
    free = await choice_of(server)
    tokenizer = text_model.tokenizer
    marker = tokenizer.encode("</think>", add_special_tokens=False)
    for budget in (0, 1, 6):
        choice = await choice_of(server, thinking_token_budget=budget)
        token_ids = choice["token_ids"]
        assert token_ids[:budget] == free["token_ids"][:budget]
        assert token_ids[budget : budget + len(marker)] == marker
        assert choice["message"]["content"]
        counted = choice["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert counted == budget + len(marker)
    assert (await choice_of(server, thinking_token_budget=10**12))["token_ids"] == free["token_ids"]


async def test_the_same_tokens_in_company_and_preempted(server: RealServer, real_engine: Engine) -> None:
    asked = {
        "max_tokens": 40,
        "thinking_token_budget": 5,
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}},
    }
    whole = await choice_of(server, **asked)
    assert json.loads(whole["message"]["content"]).keys() == {"city"}
    assert whole["finish_reason"] == "stop"
    wishes: list[dict[str, Any]] = [asked, {"seed": 6, "tools": [TOOL]}]
    alone = [(await choice_of(server, **wish))["token_ids"] for wish in wishes]
    assert alone[0] == whole["token_ids"]
    scheduler = real_engine.scheduler
    num_before = scheduler.counters.num_preemptions

    def preempt_all() -> None:
        for request in tuple(scheduler.requests.running):
            preempt(scheduler.requests, request)

    tasks = [asyncio.create_task(choice_of(server, **wish)) for wish in wishes]
    while scheduler.counters.num_preemptions == num_before and not all(task.done() for task in tasks):
        await asyncio.sleep(0.05)
        server.engine._engine_loop.post(Call(preempt_all))
    assert [(await task)["token_ids"] for task in tasks] == alone
    assert scheduler.counters.num_preemptions > num_before


async def test_plain_text_is_the_same_with_strict_tools(server: RealServer) -> None:
    loose = {"type": "function", "function": {**TOOL["function"], "strict": False}}
    one, other = await asyncio.gather(choice_of(server, tools=[loose]), choice_of(server, tools=[TOOL]))
    assert one["token_ids"] == other["token_ids"]
