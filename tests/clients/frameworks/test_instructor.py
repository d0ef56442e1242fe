"""Instructor, in each of its modes that a server of OpenAI's or Anthropic's API can have."""

from __future__ import annotations

from typing import Any

import anthropic
import instructor
import openai
import pytest

from tests.clients.support.shared import MODEL, QUESTION, Place

ASK: Any = [{"role": "user", "content": QUESTION}]
LIMITS: Any = {"model": MODEL, "max_tokens": 80, "temperature": 0}


@pytest.fixture(
    params=[instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA],
    ids=lambda mode: mode.name,
)
def client(v1: str, request: pytest.FixtureRequest) -> Any:
    return instructor.from_openai(openai.OpenAI(base_url=v1, api_key="none"), mode=request.param)


def test_structured_output(client: Any) -> None:
    place, answer = client.chat.completions.create_with_completion(
        messages=ASK, response_model=Place, max_retries=1, **LIMITS
    )
    assert isinstance(place, Place)
    assert answer.usage.completion_tokens > 0


def test_a_stream_of_partial_objects(client: Any) -> None:
    parts = list(client.chat.completions.create_partial(messages=ASK, response_model=Place, **LIMITS))
    assert parts[-1].city


def test_a_plain_answer(client: Any) -> None:
    answer = client.chat.completions.create(messages=ASK, response_model=None, **LIMITS)
    assert "Paris" in answer.choices[0].message.content


def test_three_turns(client: Any) -> None:
    messages = list(ASK)
    for question in ("And of Norway?", "Thank you."):
        answer = client.chat.completions.create(messages=messages, response_model=None, **LIMITS)
        messages += [answer.choices[0].message.model_dump(), {"role": "user", "content": question}]
    assert client.chat.completions.create(messages=messages, response_model=None, **LIMITS).choices


def test_anthropics_tools(url: str) -> None:
    client = instructor.from_anthropic(anthropic.Anthropic(base_url=url, api_key="none"), mode=instructor.Mode.TOOLS)
    place = client.messages.create(messages=ASK, response_model=Place, model=MODEL, max_tokens=80)
    assert isinstance(place, Place)
