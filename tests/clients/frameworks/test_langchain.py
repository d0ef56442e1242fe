"""LangChain, over chat completions and over responses."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tests.clients.support.shared import MODEL, QUESTION, Place


@tool
def weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"Sunny in {city} for {days} days."


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def model(v1: str, request: pytest.FixtureRequest) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL,
        base_url=v1,
        api_key="none",
        temperature=0,
        max_tokens=80,
        stream_usage=True,
        use_responses_api=request.param,
    )


def text_of(message: AIMessage) -> str:
    return str(message.text)


def test_a_plain_answer(model: ChatOpenAI) -> None:
    answer = model.invoke(QUESTION)
    assert "Paris" in text_of(answer)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0


def test_a_stream(model: ChatOpenAI) -> None:
    chunks = list(model.stream(QUESTION))
    assert len(chunks) > 3
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert "Paris" in str(whole.text)
    assert whole.usage_metadata is not None


def test_three_turns(model: ChatOpenAI) -> None:
    messages = [HumanMessage(QUESTION)]
    for question in ("And of Norway?", "Thank you."):
        messages += [model.invoke(messages), HumanMessage(question)]
    assert text_of(model.invoke(messages))


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(model: ChatOpenAI, method: str) -> None:
    place = model.with_structured_output(Place, method=method).invoke(QUESTION)
    assert isinstance(place, Place)


def test_a_tool_and_its_result(model: ChatOpenAI) -> None:
    messages = [HumanMessage("How is the weather in Oslo?")]
    answer = model.bind_tools([weather], tool_choice="weather").invoke(messages)
    (call,) = answer.tool_calls
    assert set(call["args"]) >= {"city", "days"}
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert text_of(model.invoke([*messages, answer, result]))


def test_embeddings(v1: str) -> None:
    embeddings = OpenAIEmbeddings(model=MODEL, base_url=v1, api_key="none", check_embedding_ctx_length=False)
    assert len(embeddings.embed_documents(["a", "b"])) == 2
