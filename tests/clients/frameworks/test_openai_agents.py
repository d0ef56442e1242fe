"""OpenAI's Agents SDK, over responses and over chat completions."""

from __future__ import annotations

from typing import Any

import agents
import openai
import pytest
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool

from tests.clients.support.shared import MODEL, QUESTION, Place

SETTINGS = ModelSettings(max_tokens=80, temperature=0)


@pytest.fixture(params=[OpenAIResponsesModel, OpenAIChatCompletionsModel])
def model(v1: str, request: pytest.FixtureRequest) -> Any:
    agents.set_tracing_disabled(True)
    return request.param(model=MODEL, openai_client=openai.AsyncOpenAI(base_url=v1, api_key="none"))


async def test_a_plain_answer(model: Any) -> None:
    result = await Runner.run(Agent("a", instructions="Be brief.", model=model, model_settings=SETTINGS), QUESTION)
    assert "France" in result.final_output  # with instructions, so small a model may name another capital


async def test_a_stream(model: Any) -> None:
    result = Runner.run_streamed(Agent("a", model=model, model_settings=SETTINGS), QUESTION)
    deltas = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert len(deltas) > 3
    assert "".join(deltas) == result.final_output


async def test_three_turns(model: Any) -> None:
    agent = Agent("a", model=model, model_settings=SETTINGS)
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    for question in ("And of Norway?", "Thank you."):
        result = await Runner.run(agent, items)
        items = [*result.to_input_list(), {"role": "user", "content": question}]
    assert (await Runner.run(agent, items)).final_output


async def test_structured_output(model: Any) -> None:
    agent = Agent("a", model=model, output_type=Place, model_settings=SETTINGS)
    assert isinstance((await Runner.run(agent, QUESTION)).final_output, Place)


async def test_a_tool_and_its_result(model: Any) -> None:
    called = []

    @function_tool
    def weather(days: int) -> str:
        """The weather in Oslo."""
        called.append(days)
        return "Sunny."

    settings = ModelSettings(max_tokens=80, temperature=0, tool_choice="required", parallel_tool_calls=False)
    agent = Agent("a", model=model, tools=[weather], model_settings=settings)
    result = await Runner.run(agent, "How is the weather?", max_turns=3)
    assert called
    assert any(item.type == "tool_call_output_item" for item in result.new_items)
