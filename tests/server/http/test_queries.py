"""Tokens of a text, text of tokens, embeddings, and what routers ask of a server."""

from __future__ import annotations

import base64
import threading
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI

from engine.interface.types import Pooling
from server.generation import prompt_sources
from server.generation.prompt_sources import Conversation
from server.generation.prompts import MAX_SHORT_CHARS
from server.http import queries
from server.http.transport.json_body import UNREAD
from server.protocol.json_limits import MAX_INLINE_BYTES
from server.text.sentence_encoder import SentenceEncoder
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.server.conftest import RunningServer, StartServer

ASK = [{"role": "user", "content": "hé"}]


class EmbeddingEngine(FakeEngineClient):
    """The embedding of a prompt: its first token, its length, and which pooling was asked for."""

    async def embed(self, token_ids: Any, pooling: Pooling, **options: Any) -> np.ndarray:
        return np.array([token_ids[0], len(token_ids), float(pooling is Pooling.MEAN), 0.0], np.float32)


async def test_tokens_of_a_text_and_back(server: RunningServer) -> None:
    status, told = await server.post("/tokenize", {"prompt": "hé", "return_token_strs": True})
    assert status == 200
    assert told == {"count": 3, "max_model_len": 512, "tokens": list("hé".encode()), "token_strs": ["h", "Ã", "©"]}
    assert (await server.post("/detokenize", {"tokens": told["tokens"]})) == (200, {"prompt": "hé", "content": "hé"})
    body = {"tokens": told["tokens"], "return_token_texts": True}
    assert (await server.post("/detokenize", body))[1]["token_texts"] == ["h", "\ufffd", "\ufffd"]


async def test_tokens_of_a_conversation(server: RunningServer) -> None:
    _, told = await server.post("/tokenize", {"messages": ASK})
    assert bytes(told["tokens"]).decode() == "user:hé\nassistant:"
    assert told["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/tokenize", {}, "prompt", "either prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": ASK}, "prompt", "either"),
        ("/tokenize", {"prompt": "a", "add_special_token": True}, "add_special_token", "did you mean"),
        ("/detokenize", {"tokens": [1, 260]}, "tokens", "from 0 to 259"),
        ("/detokenize", {"tokens": [-1]}, "tokens", "-1"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]", "an integer"),
        ("/v1/embeddings", {"input": []}, "input", "empty"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, "input", "at most 2048"),
        ("/v1/embeddings", {"input": "x" * 4000}, "input", "tokens"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, "dimensions", "at least 1"),
        ("/v1/embeddings", {"input": "a", "dimensions": 2}, "dimensions", "was not made for shorter embeddings"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format", "base64"),
        ("/v1/embeddings", {"input": "a", "model": "other"}, "model", "does not exist"),
    ],
)
async def test_what_is_refused(start_server: StartServer, path: str, body: Any, param: str, words: str) -> None:
    server = await start_server(EmbeddingEngine())
    status, answer = await server.post(path, body)
    assert status in (400, 404)
    assert answer["error"]["param"] == param
    assert words in answer["error"]["message"]


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
async def test_embeddings_by_the_official_client(start_server: StartServer, encoding_format: Any) -> None:
    server = await start_server(EmbeddingEngine())
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        answer = await client.embeddings.create(model="fake", input=["a", "bc"], encoding_format=encoding_format)
        assert answer.usage.total_tokens == 3
        vectors = [item.embedding for item in answer.data]
        if encoding_format == "base64":
            vectors = [list(np.frombuffer(base64.b64decode(vector), "<f4")) for vector in vectors]  # type: ignore[arg-type]
        for vector, expected in zip(vectors, [[97, 1, 0, 0], [98, 2, 0, 0]], strict=True):
            assert vector == pytest.approx(np.array(expected) / np.linalg.norm(expected), abs=1e-6)
    _, told = await server.post("/v1/embeddings", {"input": [[1, 2]], "pooling": "mean"})
    assert told["data"][0]["embedding"][:3] == pytest.approx(np.array([1, 2, 1]) / 6**0.5, abs=1e-6)


async def test_shorter_embeddings_of_a_model_that_was_made_for_them(start_server: StartServer) -> None:
    model = FakeTextModel()
    model.sentences = SentenceEncoder(Pooling.LAST, takes_dimensions=True)
    server = await start_server(EmbeddingEngine(), text_model=model)
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        plain = await client.embeddings.create(model="fake", input=[97, 98, 99], dimensions=2)
        assert plain.data[0].embedding == pytest.approx(np.array([97, 3]) / np.linalg.norm([97, 3]), abs=1e-6)
    _, told = await server.post("/v1/embeddings", {"input": "a", "dimensions": 5})
    assert "have 4" in told["error"]["message"]


@pytest.mark.parametrize("prefix", ["/", "/get_"])
async def test_routers_learn_what_they_ask_for(server: RunningServer, prefix: str) -> None:
    status, told = await server.get(f"{prefix}server_info")
    assert status == 200
    assert told["served_model_name"] == "fake"
    assert told["max_num_reqs"] >= 1
    status, told = await server.get(f"{prefix}model_info")
    assert status == 200
    assert (told["is_generation"], told["model_type"], told["max_model_len"]) == (True, "fake", 512)


async def test_the_new_routes_want_a_key(start_server: StartServer) -> None:
    server = await start_server(EmbeddingEngine(), api_keys=("a-key-of-some-length",))
    for path in ("/tokenize", "/detokenize", "/v1/embeddings"):
        assert (await server.post(path, {"input": "a"}))[0] == 401
    for path in ("/server_info", "/model_info"):
        assert (await server.get(path))[0] == 401


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": "é" * 40}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "é" * 40}]}, "messages"),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "é" * 40}]}, None),
    ],
)
async def test_what_has_too_many_tokens_is_not_counted(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], param: str | None
) -> None:
    monkeypatch.setattr(queries, "MAX_COUNTED", 40)
    monkeypatch.setattr(prompt_sources, "MAX_LISTED_TOKENS", 40)
    status, told = await server.post(path, body)
    assert (status, told["error"].get("param")) == (400, param)
    assert "has more than 40 tokens, the limit of this route" in told["error"]["message"]


async def test_a_large_conversation_is_put_together_beside_the_loop(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation_of, threads = queries.conversation_of, []

    def noted(query: Any) -> Any:
        threads.append(threading.current_thread())
        return conversation_of(query)

    monkeypatch.setattr(queries, "conversation_of", noted)
    body = {"messages": [{"role": "user", "content": "x" * 100}] * (MAX_INLINE_BYTES // 100)}
    status, told = await server.post("/v1/messages/count_tokens", body)
    assert (status, told["input_tokens"] > MAX_INLINE_BYTES) == (200, True)
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


@pytest.mark.parametrize(("num_chars", "name"), [(10, "worker"), (MAX_SHORT_CHARS + 1, "long_worker")])
async def test_a_short_conversation_is_counted_without_waiting_for_long_ones(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, num_chars: int, name: str
) -> None:
    names, encode = list[str](), Conversation.encode

    def noted(conversation: Conversation, *args: Any) -> list[int]:
        names.append(threading.current_thread().name)
        return encode(conversation, *args)

    monkeypatch.setattr(Conversation, "encode", noted)
    body = {"messages": [{"role": "user", "content": "x" * num_chars}]}
    assert (await server.post("/v1/messages/count_tokens", body))[0] == 200
    assert [each.rpartition("_")[0] for each in names] == [name]


async def test_the_numbers_of_embeddings_are_listed_beside_the_loop(start_server: StartServer) -> None:
    threads = []

    class Listed(np.ndarray):
        def tolist(self) -> Any:
            threads.append(threading.current_thread())
            return super().tolist()

    class ListedEngine(EmbeddingEngine):
        async def embed(self, token_ids: Any, pooling: Pooling, **options: Any) -> np.ndarray:
            return (await super().embed(token_ids, pooling)).view(Listed)

    server = await start_server(ListedEngine())
    _, told = await server.post("/v1/embeddings", {"input": ["a", "b"]})
    assert [len(item["embedding"]) for item in told["data"]] == [4, 4]
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_embeddings_are_computed_once_however_much_is_unread(start_server: StartServer) -> None:
    class LongEngine(EmbeddingEngine):
        async def embed(self, token_ids: Any, pooling: Pooling, **options: Any) -> np.ndarray:
            return np.ones(20_000, np.float32)

    server = await start_server(LongEngine())
    unread = server.app[UNREAD]
    unread.take("", unread.limit)
    status, told = await server.post("/v1/embeddings", {"input": "a"})
    assert (status, len(told["data"][0]["embedding"])) == (200, 20_000)
    status, told = await server.post("/tokenize", {"prompt": "a" * 40_000})
    assert (status, told["error"]["code"]) == (429, "too_much_unread")


@pytest.mark.parametrize("path", ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"])
async def test_tokens_of_a_chat_are_counted(server: RunningServer, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "tide"}], "max_tokens": 3}
    _, rendered = await server.post("/v1/chat/completions/render", body)
    assert await server.post(path, body) == (200, {"input_tokens": len(rendered["token_ids"])})
    assert server.engine.submitted == []
    status, answer = await server.post(path, {"messages": []})
    assert (status, answer["error"]["param"]) == (400, "messages")


async def test_inputs_in_llama_cpps_forms(server: RunningServer) -> None:
    _, known = await server.post("/v1/embeddings", {"input": ["abc", [97, 98, 99]]})
    vectors = [entry["embedding"] for entry in known["data"]]
    forms: list[Any] = [
        {"prompt_string": "abc"}, {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]},
        [97, "bc"], [{"prompt_string": "a"}, 98, 99],
    ]  # fmt: skip
    for form in forms:
        status, answer = await server.post("/v1/embeddings", {"input": form})
        assert (status, [entry["embedding"] for entry in answer["data"]]) == (200, vectors[:1]), form
    _, answer = await server.post("/v1/embeddings", {"input": forms[:3]})
    assert [entry["embedding"] for entry in answer["data"]] == vectors[:1] * 3
    _, answer = await server.post("/embedding", {"content": forms[:3]})
    assert [entry["embedding"] for entry in answer] == [vectors[:1]] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        "", [], {"content": "a"}, {"content": [{"type": "unknown"}]}, {"content": [{"type": "text"}]}, {"content": []},
        {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
        {"content": [7] * 2000},
        [1.5], [True], [[97, 1.5]], {"prompt_string": 7}, {"prompt_string": "a", "multimodal_data": ["x"]},
    ],
)  # fmt: skip
async def test_inputs_of_other_forms_are_refused(server: RunningServer, wrong: Any) -> None:
    status, answer = await server.post("/v1/embeddings", {"input": wrong})
    assert (status, answer["error"]["param"]) == (400, "input")
