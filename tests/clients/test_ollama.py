"""Ollama's own client, and LangChain's, against Ollama's API."""

from __future__ import annotations

import json

import pytest
from langchain_core.messages import HumanMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings
from ollama import Client, ResponseError

from tests.clients.support.shared import MODEL, QUESTION, Place

GREEDY = {"temperature": 0, "num_predict": 80}


@pytest.fixture
def client(url: str) -> Client:
    return Client(host=url)


def test_a_chat(client: Client) -> None:
    answer = client.chat(MODEL, messages=[{"role": "user", "content": QUESTION}], options=GREEDY)
    assert "Paris" in (answer.message.content or "")
    assert answer.done
    assert (answer.eval_count or 0) > 0


def test_a_stream_has_the_same_text(client: Client) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    whole = client.chat(MODEL, messages=messages, options=GREEDY).message.content
    pieces = list(client.chat(f"{MODEL}:latest", messages=messages, options=GREEDY, stream=True))
    assert len(pieces) > 3
    assert "".join(piece.message.content or "" for piece in pieces) == whole
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_completion(client: Client) -> None:
    answer = client.generate(MODEL, prompt="The capital of France is", raw=True, options={**GREEDY, "num_predict": 8})
    assert "Paris" in answer.response


def test_a_schema(client: Client) -> None:
    answer = client.chat(
        MODEL, messages=[{"role": "user", "content": QUESTION}], format=Place.model_json_schema(), options=GREEDY
    )
    if answer.done_reason == "stop":
        Place.model_validate(json.loads(answer.message.content or ""))


def test_embeddings_and_models(client: Client) -> None:
    assert len(client.embed(MODEL, input=["a", "b"]).embeddings) == 2
    assert MODEL in [model.model for model in client.list().models]
    assert "completion" in (client.show(MODEL).capabilities or [])


def test_an_error_is_the_clients_own(client: Client) -> None:
    with pytest.raises(ResponseError, match="does not exist") as error:
        client.chat("none", messages=[{"role": "user", "content": "x"}])
    assert error.value.status_code == 404


def test_langchain(url: str) -> None:
    model = ChatOllama(model=MODEL, base_url=url, temperature=0, num_predict=40)
    answer = model.invoke([HumanMessage(QUESTION)])
    assert "Paris" in str(answer.content)
    assert answer.usage_metadata is not None
    assert len(OllamaEmbeddings(model=MODEL, base_url=url).embed_query("a")) > 100
