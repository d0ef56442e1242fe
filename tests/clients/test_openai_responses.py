"""The official Python library: responses over HTTP and WebSocket, and conversations."""

from __future__ import annotations

import time
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.conversations import Conversation
from openai.types.responses import Response, ResponseStreamEvent

from tests.clients.support.shared import MODEL, QUESTION, WEATHER, Place, is_weather, strictly

TOOL: Any = {"type": "function", "name": "weather", "description": "Of a city.", "parameters": WEATHER, "strict": True}
# OpenAI's own answers, or those that the specification of Open Responses asks for, have them; the library has not.
FIELDS = ("store", "presence_penalty", "frequency_penalty")
ALSO = frozenset({*FIELDS, *(f"response.{name}" for name in FIELDS)})
LIMITS: Any = {"model": MODEL, "max_output_tokens": 80, "temperature": 0}


@pytest.fixture(scope="module")
def client(v1: str) -> OpenAI:
    return OpenAI(base_url=v1, api_key="none", max_retries=0)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"instructions": "Be brief.", "metadata": {"a": "b"}},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "weather"}},
        {"tools": [TOOL]},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"text": {"format": {"type": "json_object"}}},
        {"reasoning": {"effort": "low", "summary": "auto"}},
        {"store": False},
        {"max_output_tokens": 1},
    ],
)
def test_every_event_is_the_librarys(v1: str, parameters: dict[str, Any]) -> None:
    body = {"input": QUESTION, **LIMITS, **parameters}
    with httpx.stream("POST", v1 + "/responses", json={**body, "stream": True}, timeout=120) as answer:
        data = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    events = [strictly(ResponseStreamEvent, event, also=ALSO) for event in data]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type in ("response.completed", "response.incomplete")
    whole = strictly(Response, httpx.post(v1 + "/responses", json=body, timeout=120).content, also=ALSO)
    streamed = events[-1].response
    assert whole.output_text == streamed.output_text
    assert [item.type for item in whole.output] == [item.type for item in streamed.output]


def test_a_plain_answer_fetched_followed_and_deleted(client: OpenAI) -> None:
    first = client.responses.create(input=QUESTION, **LIMITS)
    assert "Paris" in first.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(input="And of Norway?", previous_response_id=first.id, **LIMITS)
    third = client.responses.create(input="Thank you.", previous_response_id=second.id, **LIMITS)
    assert third.output_text
    assert third.usage is not None
    assert third.usage.input_tokens_details.cached_tokens > 0
    assert [item.type for item in client.responses.input_items.list(third.id)] == ["message"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_three_turns_with_the_output_as_it_came(client: OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    for question in ("And of Norway?", "Thank you."):
        answer = client.responses.create(input=items, **LIMITS)
        items += answer.output
        items.append({"role": "user", "content": question})
    assert client.responses.create(input=items, **LIMITS).output_text


def test_the_streaming_helper(client: OpenAI) -> None:
    with client.responses.stream(input=QUESTION, **LIMITS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.output_text.delta" in kinds
    assert "Paris" in final.output_text


def test_structured_parse(client: OpenAI) -> None:
    assert isinstance(client.responses.parse(input=QUESTION, text_format=Place, **LIMITS).output_parsed, Place)
    with client.responses.stream(input=QUESTION, text_format=Place, **LIMITS) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_response().output_parsed, Place)


def test_a_tool_and_its_result(client: OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]
    answer = client.responses.create(
        input=items, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, **LIMITS
    )
    (call,) = answer.output
    assert call.type == "function_call"
    assert is_weather(call.arguments)
    items += [call, {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}]
    assert client.responses.create(input=items, tools=[TOOL], tool_choice="none", **LIMITS).output_text


def test_in_the_background(client: OpenAI) -> None:
    begun = client.responses.create(input=QUESTION, background=True, **LIMITS)
    assert begun.status in ("queued", "in_progress")
    deadline = time.monotonic() + 60
    while (now := client.responses.retrieve(begun.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert now.status in ("completed", "incomplete")
    events = list(client.responses.retrieve(begun.id, stream=True, starting_after=1))
    assert [event.sequence_number for event in events] == list(range(2, 2 + len(events)))
    long = client.responses.create(input=QUESTION, background=True, **{**LIMITS, "max_output_tokens": 4000})
    assert client.responses.cancel(long.id).status == "cancelled"


def test_a_conversation(client: OpenAI, v1: str) -> None:
    conversation = client.conversations.create(metadata={"a": "b"})
    strictly(Conversation, httpx.get(f"{v1}/conversations/{conversation.id}").content)
    client.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "user", "content": "I am Ada."}]
    )
    client.responses.create(input=QUESTION, conversation=conversation.id, **LIMITS)
    items = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [item.role for item in items if item.type == "message"] == ["user", "user", "assistant"]
    item = client.conversations.items.retrieve(str(items[0].id), conversation_id=conversation.id)
    assert item.type == "message"
    client.conversations.items.delete(str(items[0].id), conversation_id=conversation.id)
    assert client.conversations.update(conversation.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert client.conversations.delete(conversation.id).deleted


def test_errors_are_its_exceptions(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_none")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.responses.create(input=QUESTION, **{**LIMITS, "temperature": 3})
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError):
        client.responses.create(input=QUESTION, tools=[{"type": "function"}], **LIMITS)


async def test_the_socket(v1: str) -> None:
    async with AsyncOpenAI(base_url=v1, api_key="none") as client, client.responses.connect() as socket:
        await socket.response.create(input=QUESTION, store=False, **LIMITS)
        texts = []
        async for event in socket:
            if event.type == "response.output_text.delta":
                texts.append(event.delta)
            if event.type in ("response.completed", "response.incomplete"):
                assert "".join(texts) == event.response.output_text
                break
        await socket.response.create(
            input="And of Norway?", previous_response_id=event.response.id, store=False, **LIMITS
        )
        async for event in socket:
            assert event.type != "error", event
            if event.type in ("response.completed", "response.incomplete"):
                break
