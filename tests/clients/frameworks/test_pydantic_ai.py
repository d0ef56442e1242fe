"""Pydantic AI, over chat completions and over responses."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from tests.clients.support.shared import MODEL, QUESTION, WEATHER, Place, is_weather

SETTINGS = ModelSettings(max_tokens=80, extra_body={"temperature": 0})


@pytest.fixture(params=["chat", "responses"])
def model(v1: str, request: pytest.FixtureRequest) -> Model:
    provider = OpenAIProvider(base_url=v1, api_key="none")
    kind = OpenAIChatModel if request.param == "chat" else OpenAIResponsesModel
    return kind(MODEL, provider=provider)


async def test_a_plain_answer(model: Model) -> None:
    answer = await Agent(model, model_settings=SETTINGS).run(QUESTION)
    assert "Paris" in answer.output
    assert answer.usage.output_tokens > 0


async def test_a_stream(model: Model) -> None:
    async with Agent(model, model_settings=SETTINGS).run_stream(QUESTION) as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 3
    assert "Paris" in "".join(pieces)


async def test_three_turns(model: Model) -> None:
    agent = Agent(model, model_settings=SETTINGS)
    first = await agent.run(QUESTION)
    second = await agent.run("And of Norway?", message_history=first.all_messages())
    third = await agent.run("Thank you.", message_history=second.all_messages())
    assert third.output


@pytest.mark.parametrize("kind", [ToolOutput, NativeOutput])
async def test_structured_output(model: Model, kind: type) -> None:
    answer = await Agent(model, output_type=kind(Place), model_settings=SETTINGS).run(QUESTION)
    assert isinstance(answer.output, Place)


async def test_a_tool_and_its_result(model: Model) -> None:
    tool = ToolDefinition(name="weather", description="The weather of a city.", parameters_json_schema=WEATHER)
    parameters = ModelRequestParameters(function_tools=[tool], allow_text_output=False)
    messages: list[ModelMessage] = [ModelRequest.user_text_prompt("How is the weather in Oslo?")]
    answer = await model_request(model, messages, model_settings=SETTINGS, model_request_parameters=parameters)
    call = answer.parts[0]
    assert isinstance(call, ToolCallPart)
    assert is_weather(call.args_as_dict())
    results = [
        ToolReturnPart("weather", "Sunny.", part.tool_call_id)
        for part in answer.parts
        if isinstance(part, ToolCallPart)
    ]
    messages += [answer, ModelRequest(parts=results)]
    assert (await model_request(model, messages, model_settings=SETTINGS)).parts
