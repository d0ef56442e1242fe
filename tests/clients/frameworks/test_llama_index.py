"""LlamaIndex, over chat completions and over Ollama's API.

Its packages want an older version of OpenAI's library than the other tests, so they are not among the requirements:

    uv venv /tmp/index && uv pip install --python /tmp/index/bin/python pytest pytest-asyncio httpx \
        llama-index-llms-openai-like llama-index-llms-ollama llama-index-embeddings-ollama
    EAGRE_URL=http://127.0.0.1:8000 /tmp/index/bin/python -m pytest -c tests/clients/pytest.ini --rootdir . \
        --confcutdir tests/clients tests/clients/frameworks/test_llama_index.py
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("llama_index.llms.openai_like")

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike

from tests.clients.support.shared import MODEL, QUESTION, Place

ASK = [ChatMessage(role="user", content=QUESTION)]


@pytest.fixture(params=["openai", "ollama"])
def model(url: str, v1: str, request: pytest.FixtureRequest) -> Any:
    if request.param == "ollama":
        return Ollama(
            model=MODEL, base_url=url, temperature=0, context_window=2048, additional_kwargs={"num_predict": 80}
        )
    return OpenAILike(
        model=MODEL, api_base=v1, api_key="none", temperature=0, max_tokens=80, is_chat_model=True,
        is_function_calling_model=True, context_window=2048,
    )  # fmt: skip


def test_a_chat(model: Any) -> None:
    assert "Paris" in str(model.chat(ASK).message.content)


def test_a_stream_has_the_same_text(model: Any) -> None:
    whole = str(model.chat(ASK).message.content)
    pieces = [piece.delta or "" for piece in model.stream_chat(ASK)]
    assert len(pieces) > 3
    assert "".join(pieces) == whole


async def test_a_chat_and_a_stream_in_a_loop(model: Any) -> None:
    whole = str((await model.achat(ASK)).message.content)
    pieces = [piece.delta or "" async for piece in await model.astream_chat(ASK)]
    assert "".join(pieces) == whole


def test_a_completion(model: Any) -> None:
    assert str(model.complete(QUESTION))


def test_a_tool_that_must_be_called(model: Any) -> None:
    def weather(city: str) -> str:
        """Tell the weather of a city."""
        return f"Sunny in {city}."

    if isinstance(model, Ollama):  # it has no choice of tools
        return
    answer = model.chat_with_tools(
        [FunctionTool.from_defaults(weather)], user_msg="How is the weather in Oslo?", tool_required=True
    )
    (call,) = model.get_tool_calls_from_response(answer)
    assert call.tool_name == "weather"
    assert set(call.tool_kwargs) == {"city"}


def test_structured_output(model: Any) -> None:
    if not isinstance(model, Ollama):
        model.should_use_structured_outputs = True
    answer = model.structured_predict(Place, _prompt("Describe {city}."), city="Paris")
    assert isinstance(answer, Place)


def test_embeddings(url: str) -> None:
    embedding = OllamaEmbedding(model_name=MODEL, base_url=url)
    assert len(embedding.get_text_embedding("a")) > 100
    assert len(embedding.get_text_embedding_batch(["a", "b"])) == 2


def _prompt(text: str) -> Any:
    from llama_index.core.prompts import PromptTemplate

    return PromptTemplate(text)
