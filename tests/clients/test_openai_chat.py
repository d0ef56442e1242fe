"""The official Python library: chat completions, completions, embeddings, models, errors."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, Field

from tests.clients.support.shared import MODEL, QUESTION, WEATHER_TOOL, Place, is_weather, strictly

ASK: Any = [{"role": "user", "content": QUESTION}]
LIMITS: Any = {"model": MODEL, "max_tokens": 80, "temperature": 0}
# Fields of vLLM's and SGLang's answers, which are not OpenAI's.
OF_CHOICES = frozenset({"choices.stop_reason", "choices.matched_stop", "choices.token_ids"})
OF_ANSWERS = OF_CHOICES | {"prompt_token_ids", "prompt_logprobs", "kv_transfer_params", "metrics"}
OF_CHATS = OF_ANSWERS | {"choices.message.reasoning", "choices.message.reasoning_content"}
OF_COMPLETIONS = OF_ANSWERS | {"choices.prompt_logprobs", "choices.prompt_token_ids"}


@pytest.fixture(scope="module")
def client(v1: str) -> OpenAI:
    return OpenAI(base_url=v1, api_key="none", max_retries=0)


def events(v1: str, path: str, body: dict[str, Any]) -> list[str]:
    """The `data:` of a stream as it is on the wire."""
    with httpx.stream("POST", v1 + path, json={**body, "stream": True}, timeout=120) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]


def test_a_plain_answer(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(messages=ASK, **LIMITS)
    answer = strictly(ChatCompletion, raw.content, also=OF_CHATS)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert raw.headers["x-request-id"]


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"stream_options": {"include_usage": True}},
        {"n": 2, "temperature": 1, "seed": 1},
        {"logprobs": True, "top_logprobs": 3},
        {"stop": ["Paris"]},
        {"tools": [WEATHER_TOOL], "tool_choice": "required"},
        {"tools": [WEATHER_TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        {"tools": [WEATHER_TOOL], "tool_choice": "none"},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_every_chunk_is_the_librarys(v1: str, parameters: dict[str, Any]) -> None:
    *chunks, end = events(v1, "/chat/completions", {"messages": ASK, **LIMITS, **parameters})
    assert end == "[DONE]"
    parsed = [strictly(ChatCompletionChunk, chunk, also=OF_CHOICES) for chunk in chunks]
    assert len({chunk.id for chunk in parsed}) == 1
    body = {"messages": ASK, **LIMITS, **parameters, "stream_options": None}
    whole = httpx.post(v1 + "/chat/completions", json=body, timeout=120)
    answer = strictly(ChatCompletion, whole.content, also=OF_CHATS)
    for choice in answer.choices:
        deltas = [one.delta for chunk in parsed for one in chunk.choices if one.index == choice.index]
        assert "".join(delta.content or "" for delta in deltas) == (choice.message.content or "")
        assert [delta.role for delta in deltas if delta.role] == ["assistant"]


def test_the_streaming_helper(client: OpenAI) -> None:
    with client.chat.completions.stream(messages=ASK, **LIMITS, stream_options={"include_usage": True}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("content.done") == 1
    assert "content.delta" in kinds
    assert "Paris" in (final.choices[0].message.content or "")
    assert final.usage is not None


def test_three_turns(client: OpenAI) -> None:
    messages: list[Any] = list(ASK)
    for question in ("And of Norway?", "Thank you."):
        answer = client.chat.completions.create(messages=messages, **LIMITS)
        messages += [answer.choices[0].message, {"role": "user", "content": question}]
    last = client.chat.completions.create(messages=messages, **LIMITS)
    assert last.choices[0].message.content
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    assert (last.usage.prompt_tokens_details.cached_tokens or 0) > 0


def test_structured_parse(client: OpenAI) -> None:
    answer = client.chat.completions.parse(messages=ASK, response_format=Place, **LIMITS)
    place = answer.choices[0].message.parsed
    assert isinstance(place, Place)
    again = client.chat.completions.parse(
        messages=[*ASK, answer.choices[0].message, {"role": "user", "content": "And of Norway?"}],  # type: ignore[list-item]
        response_format=Place,
        **LIMITS,
    )
    assert isinstance(again.choices[0].message.parsed, Place)


def test_a_structured_stream(client: OpenAI) -> None:
    with client.chat.completions.stream(messages=ASK, response_format=Place, **LIMITS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert isinstance(final.choices[0].message.parsed, Place)


class weather(BaseModel):  # noqa: N801 - the name of the tool
    """The weather of a city."""

    city: str = Field(pattern="^(Paris|Oslo)$")
    days: int


def test_a_tool_and_its_result(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]
    answer = client.chat.completions.create(
        messages=messages, tools=[WEATHER_TOOL], tool_choice="required", **LIMITS, parallel_tool_calls=False
    )
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert is_weather(call.function.arguments)
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    told = client.chat.completions.create(messages=messages, tools=[WEATHER_TOOL], **LIMITS)
    assert told.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_a_tool_parsed_and_streamed(client: OpenAI) -> None:
    tool = openai.pydantic_function_tool(weather)
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    parsed = client.chat.completions.parse(messages=ASK, tools=[tool], tool_choice=choice, **LIMITS)
    assert parsed.choices[0].message.tool_calls is not None
    assert isinstance(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, weather)
    with client.chat.completions.stream(messages=ASK, tools=[tool], tool_choice=choice, **LIMITS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert kinds.count("tool_calls.function.arguments.done") == 1
    assert final.choices[0].message.tool_calls is not None
    assert isinstance(final.choices[0].message.tool_calls[0].function.parsed_arguments, weather)


@pytest.mark.parametrize("parameters", [{}, {"logprobs": 2}, {"n": 2, "seed": 2}, {"echo": True}, {"best_of": 2}])
def test_completions(v1: str, parameters: dict[str, Any]) -> None:
    body = {"prompt": "The tide", **LIMITS, **parameters}
    strictly(Completion, httpx.post(v1 + "/completions", json=body, timeout=120).content, also=OF_COMPLETIONS)
    if "best_of" not in parameters:
        *chunks, end = events(v1, "/completions", body)
        assert end == "[DONE]"
        for chunk in chunks:
            # OpenAI's own streams have null here until the end, though the library's type has not.
            strictly(Completion, chunk.replace('"finish_reason":null', '"finish_reason":"stop"'), also=OF_COMPLETIONS)


def test_embeddings(client: OpenAI) -> None:
    raw = client.embeddings.with_raw_response.create(model=MODEL, input=["a", "b"], encoding_format="float")
    floats = strictly(CreateEmbeddingResponse, raw.content)
    by_default = client.embeddings.create(model=MODEL, input=["a", "b"])  # base64 on the wire
    for one, other in zip(floats.data, by_default.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
    wire = httpx.post(str(client.base_url) + "embeddings", json={"input": "a", "encoding_format": "base64"}).json()
    assert len(base64.b64decode(wire["data"][0]["embedding"])) == 4 * len(floats.data[0].embedding)


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_errors_are_its_exceptions(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(messages=ASK, model="none")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(messages=ASK, **{**LIMITS, "temperature": 3})
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError), client.chat.completions.stream(messages=[], **LIMITS) as stream:
        list(stream)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(messages=ASK, response_format=Place, **{**LIMITS, "max_tokens": 2})


def test_what_the_platform_has_and_this_server_ignores(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        messages=ASK, **LIMITS, metadata={"a": "b"}, store=True, service_tier="auto", user="me",
        prompt_cache_key="k", safety_identifier="s", verbosity="low", reasoning_effort="low",
    )  # fmt: skip
    assert json.loads(raw.content)["choices"]


async def test_the_asynchronous_client_leaves_a_stream(v1: str) -> None:
    async with openai.AsyncOpenAI(base_url=v1, api_key="none") as client:
        stream = await client.chat.completions.create(messages=ASK, stream=True, **{**LIMITS, "max_tokens": 2000})
        async for _ in stream:
            break
        await stream.close()
        assert (await client.chat.completions.create(messages=ASK, **LIMITS)).choices
