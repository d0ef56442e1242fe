"""What a message on /v1/stream means, and how an answer's messages are written; no socket anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.api.framing import MESSAGES
from server.api.openai.websocket_messages import STREAM, read_message
from server.api.route import AnswerContext, Cancel, Generate, Refusal
from server.generation.output_sequence import Delta
from server.protocol.errors import ApiError
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTokenizer
from tests.server.generation.test_generation import submit

LIMIT = 200  # bytes


def test_what_messages_ask_for() -> None:
    assert read_message('{"type":"generate","id":"a","prompt":"x"}', LIMIT) == Generate("a", {"prompt": "x"})
    assert read_message('{"type":"cancel","id":"a"}', LIMIT) == Cancel("a")


@pytest.mark.parametrize(
    ("text", "client_id", "code"),
    [
        ("{", None, "invalid_json"),
        ("[]", None, "invalid_type"),
        ('{"type":"generate"}', None, "invalid_value"),
        ('{"id":"a"}', "a", "missing_required_parameter"),
        ('{"type":"resume","id":"a"}', "a", "invalid_value"),
        ('{"type":"cancel","id":"a","why":1}', "a", "unknown_parameter"),
        ('{"id":"' + "é" * (LIMIT // 2) + '"}', None, "body_too_large"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_id(text: str, client_id: str | None, code: str) -> None:
    refusal = read_message(text, LIMIT)
    assert isinstance(refusal, Refusal)
    assert (refusal.id, refusal.error.code) == (client_id, code)


@pytest.mark.parametrize(
    ("body", "param"),
    [({"prompt": "a", "stream": False}, "stream"), ({"prompt": "a", "messages": []}, "prompt")],
)
def test_bodies_that_no_socket_takes(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        STREAM.parse(Generate("a", body))
    assert refused.value.param == param


async def test_the_messages_of_one_answer() -> None:
    engine = FakeEngineClient(is_manual=True)
    generation = await submit(engine, prompt="ab")
    call = STREAM.parse(Generate("me", {"prompt": "ab", "request_id": "r"}))
    assert call.request_id == "r"
    writer = call.make_writer(generation, AnswerContext(MESSAGES, "r", "fake", FakeTokenizer()))
    assert json.loads(*writer.begin()) == {
        "type": "start", "id": "me", "stream_id": "r", "model": "fake", "usage": {"prompt_tokens": 2},
    }  # fmt: skip
    messages = writer.encode([Delta(0, "a", [97], None), Delta(0, "", [], None)])
    assert [json.loads(message) for message in messages] == [
        {"type": "delta", "id": "me", "index": 0, "text": "a", "token_ids": [97]}
    ]
    engine.step(3)
    await generation.collect()
    done = json.loads(*writer.end())
    assert (done["type"], done["finish_reason"], done["usage"]["completion_tokens"]) == ("done", "stop", 3)
