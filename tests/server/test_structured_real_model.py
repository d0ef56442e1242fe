"""Structured output of the default model at temperature 1: whatever it would rather say, what comes out is right."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest

from engine.client import EngineClient
from engine.engine import Engine
from engine.loop import Call
from engine.schedule.admission import preempt
from server.text.text_model import TextModel
from tests.server.support.real_server import RealServer, serving
from tests.server.support.sse_reader import chunks_of
from tests.server.support.structured_cases import STRUCTURED_CASES, StructuredCase
from tests.thoroughness import IS_FULL

pytestmark = pytest.mark.usefixtures("kept_trials")

BOUNDED = [case for case in STRUCTURED_CASES if case.is_bounded]
NUM_SEEDS = 8 if IS_FULL else 3
PROMPT = "A short answer:"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["tea", "rain", "the sea"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
ID = {
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["id"],
    "additionalProperties": False,
}
AS_PERSON = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}}


@pytest.fixture
async def server(real_engine: Engine, text_model: TextModel) -> AsyncIterator[RealServer]:
    """After each test nothing runs, no page is lost, and nothing was compiled."""
    engine = EngineClient(real_engine)
    engine.start(asyncio.get_running_loop())
    async with serving(engine, text_model, max_body_bytes=1 << 16) as server:
        yield server
        await server.wait_idle()
    stats = engine.stats()
    engine.shutdown()
    assert stats.num_active_pages == 0
    assert stats.compiles_after_ready == 0


async def stream(server: RealServer, **parameters: Any) -> list[tuple[str, str]]:
    """Text and finish reason of each choice, as they come over SSE. JSON may have much white space, so many tokens."""
    texts: dict[int, str] = defaultdict(str)
    reasons: dict[int, str] = {}
    body = {"prompt": PROMPT, "temperature": 1.0, "max_tokens": 800, "stream": True, **parameters}
    async with server.http.post(server.url + "/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        for chunk in chunks_of(await response.read()):
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
                if choice["finish_reason"] is not None:
                    reasons[choice["index"]] = choice["finish_reason"]
    return [(texts[index], reasons[index]) for index in sorted(reasons)]


async def complete(server: RealServer, **parameters: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "temperature": 1.0, "max_tokens": 400, **parameters}
    status, answer = await server.post("/v1/completions", body)
    assert status == 200, answer
    return answer["choices"][0]


def test_there_are_enough_cases():
    assert len(BOUNDED) >= 40


@pytest.mark.parametrize("case", BOUNDED, ids=lambda case: case.name)
async def test_every_seed_gives_what_was_asked_for(server: RealServer, case: StructuredCase) -> None:
    outputs = await stream(server, n=NUM_SEEDS, seed=100, **case.parameters)
    assert len(outputs) == NUM_SEEDS
    for text, reason in outputs:
        assert reason == "stop", text
        case.check(text)


async def test_other_features_do_not_break_it(server: RealServer) -> None:
    """Whatever makes tokens more or less likely chooses among those that the grammar allows."""
    (case,) = (case for case in BOUNDED if case.name == "object")
    for features in (
        {"repetition_penalty": 1.5, "frequency_penalty": 2.0, "presence_penalty": 2.0},
        {"dry_multiplier": 5.0, "dry_allowed_length": 1, "dry_sequence_breakers": []},
        {"logit_bias": {"28": -100, "90": 50, "109": -100}, "xtc_probability": 1.0, "xtc_threshold": 0.0},
        {"bad_words": ["5", "zz"], "min_tokens": 200, "ignore_eos": True},
        {"temperature": 0.0, "logprobs": 5, "logprob_token_ids": [1, 2]},
        {"temperature": 2.0, "top_n_sigma": 1.0, "typical_p": 0.2, "min_p": 0.1, "top_k": 3, "top_p": 0.3},
    ):
        answer = await complete(server, seed=5, **case.parameters, **features)
        assert answer["finish_reason"] == "stop", features
        case.check(answer["text"])


async def test_a_ban_that_contradicts_the_grammar_is_an_error_and_no_answer(server: RealServer) -> None:
    """The grammar wants a quotation mark where the request allows none: nobody but itself is disturbed."""
    body = {"prompt": PROMPT, "max_tokens": 100, "bad_words": ['"'], **AS_PERSON}
    plain = asyncio.create_task(complete(server, temperature=0, max_tokens=30))
    status, answer = await server.post("/v1/completions", body)
    assert status == 400
    assert answer["error"]["code"] == "dead_end"
    assert "leave no token" in answer["error"]["message"]
    assert (await plain)["text"] == (await complete(server, temperature=0, max_tokens=30))["text"]


async def test_a_stop_string_cuts_it(server: RealServer) -> None:
    whole = await complete(server, seed=3, **AS_PERSON)
    assert "age" in json.loads(whole["text"])
    cut = await complete(server, seed=3, stop=['"age"'], **AS_PERSON)
    assert cut["text"] == whole["text"].split('"age"')[0]
    assert cut["finish_reason"] == "stop"


async def test_chat_and_websocket_give_it_too(server: RealServer) -> None:
    messages = [{"role": "user", "content": "Who are you?"}]
    status, answer = await server.post(
        "/v1/chat/completions", {"messages": messages, "max_tokens": 200, "seed": 1, **AS_PERSON}
    )
    assert status == 200
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == set(PERSON["required"])
    text = ""
    async with server.http.ws_connect(server.url + "/v1/stream") as socket:
        frame = {"type": "generate", "id": "a", "messages": messages, "max_tokens": 200, "seed": 1, **AS_PERSON}
        await socket.send_json(frame)
        async for message in socket:
            event = json.loads(message.data)
            text += event.get("text", "")
            if event["type"] in ("done", "error"):
                break
    assert text == answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize("seed", range(20 if IS_FULL else 1))  # ten calls each
async def test_calls_that_must_be_made_always_parse(server: RealServer, seed: int) -> None:
    tools = [
        {"type": "function", "function": {"name": "register", "parameters": PERSON}},
        {"type": "function", "function": {"name": "forget", "parameters": {"$ref": "#/$defs/id", "$defs": {"id": ID}}}},
    ]
    body = {"messages": [{"role": "user", "content": "Register Ada."}], "tools": tools, "tool_choice": "required"}
    body |= {"temperature": 1.0, "n": 10, "seed": 10 * seed, "max_tokens": 690, "parallel_tool_calls": False}
    status, answer = await server.post("/v1/chat/completions", body)
    assert status == 200, answer
    named = set()
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        named.add(call["function"]["name"])
        schema = PERSON if call["function"]["name"] == "register" else ID
        jsonschema.validate(json.loads(call["function"]["arguments"]), schema)
    assert named <= {"register", "forget"}


async def test_neighbours_and_preemption_change_nothing(server: RealServer, real_engine: Engine) -> None:
    """Structured or not: alone, in a crowd, and thrown out in the middle."""
    wishes: list[dict[str, Any]] = [
        {"seed": 1, **AS_PERSON},
        {"seed": 2, "repetition_penalty": 1.2, **AS_PERSON},
        {"seed": 3, "structured_outputs": {"regex": "[a-z ]{30,60}"}},
        {"seed": 4, "max_tokens": 40},
        {"seed": 5, "max_tokens": 40, "top_p": 0.9},
        {"temperature": 0, "max_tokens": 40},
    ]
    alone = [(await complete(server, **wish))["text"] for wish in wishes]
    together = await asyncio.gather(*(complete(server, **wish) for wish in wishes))
    assert [choice["text"] for choice in together] == alone

    scheduler = real_engine.scheduler
    num_before = scheduler.counters.num_preemptions

    def preempt_all() -> None:
        for request in tuple(scheduler.requests.running):
            preempt(scheduler.requests, request)

    tasks = [asyncio.create_task(complete(server, **wish)) for wish in wishes]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.1)
        server.engine._engine_loop.post(Call(preempt_all))
        await asyncio.sleep(0.2)
    assert [task.result()["text"] for task in tasks] == alone
    assert scheduler.counters.num_preemptions > num_before


async def test_a_refused_grammar_disturbs_nobody(server: RealServer) -> None:
    plain = asyncio.create_task(complete(server, temperature=0, max_tokens=30))
    for wish, reason in (
        ({"structured_outputs": {"json": {"type": "integer", "minimum": 5, "maximum": 3}}}, "cannot be used"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "cannot be used"),
        ({"structured_outputs": {"grammar": "start: nothing"}}, "cannot be used"),
        ({"structured_outputs": {"choice": []}}, "choice"),
    ):
        status, answer = await server.post("/v1/completions", {"prompt": PROMPT, **wish})
        assert status == 400
        assert answer["error"]["param"].startswith("structured_outputs")
        assert reason in answer["error"]["message"]
    assert (await plain)["text"] == (await complete(server, temperature=0, max_tokens=30))["text"]
