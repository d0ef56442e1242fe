"""LiteLLM, as a client of OpenAI's API and of Anthropic's."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import litellm
import pytest

from tests.clients.support.shared import MODEL, QUESTION, WEATHER_TOOL, Place

ASK: Any = [{"role": "user", "content": QUESTION}]


@pytest.fixture(params=["openai", "hosted_vllm", "anthropic"])
def limits(v1: str, url: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    base = url if request.param == "anthropic" else v1
    return {
        "model": f"{request.param}/{MODEL}", "api_base": base, "api_key": "none", "max_tokens": 80, "temperature": 0
    }  # fmt: skip


def test_a_plain_answer(limits: dict[str, Any]) -> None:
    answer = litellm.completion(messages=ASK, **limits)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


def test_a_stream(limits: dict[str, Any]) -> None:
    chunks = list(litellm.completion(messages=ASK, stream=True, stream_options={"include_usage": True}, **limits))
    whole = litellm.stream_chunk_builder(chunks)
    assert len(chunks) > 3
    assert "Paris" in whole.choices[0].message.content


def test_three_turns(limits: dict[str, Any]) -> None:
    messages = list(ASK)
    for question in ("And of Norway?", "Thank you."):
        messages += [litellm.completion(messages=messages, **limits).choices[0].message]
        messages += [{"role": "user", "content": question}]
    assert litellm.completion(messages=messages, **limits).choices[0].message.content


def test_structured_output(limits: dict[str, Any]) -> None:
    answer = litellm.completion(messages=ASK, response_format=Place, **limits)
    Place.model_validate_json(answer.choices[0].message.content)


def test_a_tool_and_its_result(limits: dict[str, Any]) -> None:
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]
    tools = deepcopy([WEATHER_TOOL])  # the library strikes "additionalProperties" out of what it is given
    answer = litellm.completion(
        messages=messages, tools=tools, tool_choice="required", parallel_tool_calls=False, **limits
    )
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")
    messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    assert litellm.completion(messages=messages, tools=tools, **limits).choices


def test_responses(v1: str) -> None:
    answer = litellm.responses(input=QUESTION, model=f"openai/{MODEL}", api_base=v1, api_key="none", temperature=0)
    assert "Paris" in answer.output[0].content[0].text


def test_embeddings(v1: str) -> None:
    answer = litellm.embedding(input=["a", "b"], model=f"openai/{MODEL}", api_base=v1, api_key="none")
    assert len(answer.data) == 2
