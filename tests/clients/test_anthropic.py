"""The official Python library of Anthropic's API."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent

from tests.clients.support.shared import MODEL, QUESTION, WEATHER, Place, is_weather, strictly

ASK: Any = [{"role": "user", "content": QUESTION}]
LIMITS: Any = {"model": MODEL, "max_tokens": 80}
TOOL: Any = {"name": "weather", "description": "The weather of a city.", "input_schema": WEATHER}


@pytest.fixture(scope="module")
def client(url: str) -> Anthropic:
    return Anthropic(base_url=url, api_key="none", max_retries=0)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
        {"tools": [TOOL], "tool_choice": {"type": "any"}},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}},
        {"tools": [TOOL]},
        {"stop_sequences": ["Paris"]},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"metadata": {"user_id": "me"}, "service_tier": "auto"},
    ],
)
def test_every_event_is_the_librarys(url: str, parameters: dict[str, Any]) -> None:
    body = {"messages": ASK, "temperature": 0, **LIMITS, **parameters}
    headers = {"anthropic-version": "2023-06-01", "x-api-key": "none"}
    with httpx.stream(
        "POST", url + "/v1/messages", json={**body, "stream": True}, headers=headers, timeout=120
    ) as answer:
        data = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    events = [strictly(RawMessageStreamEvent, event) for event in data if '"ping"' not in event]
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    whole = httpx.post(url + "/v1/messages", json=body, headers=headers, timeout=120)
    message = strictly(Message, whole.content)
    starts = [event.content_block.type for event in events if event.type == "content_block_start"]
    assert starts == [block.type for block in message.content]


def test_a_plain_answer(client: Anthropic) -> None:
    answer = client.messages.create(messages=ASK, **LIMITS, extra_body={"temperature": 0})
    assert answer.content[0].type == "text"
    assert "Paris" in answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")


def test_the_streaming_helper(client: Anthropic) -> None:
    with client.messages.stream(messages=ASK, **LIMITS, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].type == "text"
    assert final.content[0].text == text
    assert final.usage.output_tokens > 0


def test_three_turns(client: Anthropic) -> None:
    messages: list[Any] = list(ASK)
    for question in ("And of Norway?", "Thank you."):
        answer = client.messages.create(messages=messages, **LIMITS)
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": question}]
    last = client.messages.create(messages=messages, **LIMITS)
    assert last.content
    assert (last.usage.cache_read_input_tokens or 0) > 0


def test_structured_output(client: Anthropic) -> None:
    answer = client.messages.parse(messages=ASK, output_format=Place, **LIMITS)
    assert isinstance(answer.parsed_output, Place)


def test_a_tool_and_its_result(client: Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    answer = client.messages.create(messages=messages, tools=[TOOL], tool_choice=choice, **LIMITS)
    assert answer.stop_reason == "tool_use"
    (call,) = answer.content
    assert call.type == "tool_use"
    assert is_weather(call.input)  # type: ignore[arg-type]
    messages += [
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}]},
    ]
    assert client.messages.create(messages=messages, tools=[TOOL], tool_choice={"type": "none"}, **LIMITS).content
    with client.messages.stream(messages=messages[:1], tools=[TOOL], tool_choice=choice, **LIMITS) as stream:
        kinds = [event.type for event in stream]
        (streamed,) = stream.get_final_message().content
    assert "input_json" in kinds
    assert streamed.type == "tool_use"
    assert is_weather(streamed.input)  # type: ignore[arg-type]


def test_tokens_are_counted(client: Anthropic) -> None:
    raw = client.messages.with_raw_response.count_tokens(messages=ASK, model=MODEL)
    counted = strictly(MessageTokensCount, raw.http_response.content)
    usage = client.messages.create(messages=ASK, **LIMITS).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_models(client: Anthropic) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_are_its_exceptions(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(messages=ASK, model="none", max_tokens=5)
    with pytest.raises(anthropic.BadRequestError) as wrong:
        client.messages.create(messages=[], **LIMITS)
    assert isinstance(wrong.value.body, dict)
    assert wrong.value.body["error"]["type"] == "invalid_request_error"


async def test_the_asynchronous_client(url: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=url, auth_token="none") as client:
        async with client.messages.stream(messages=ASK, **{**LIMITS, "max_tokens": 2000}) as stream:
            async for _ in stream:
                break
        assert (await client.messages.create(messages=ASK, **LIMITS)).content
