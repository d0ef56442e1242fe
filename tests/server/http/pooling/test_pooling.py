"""Embeddings of encoders, ranks, scores and classes over HTTP, by an engine whose numbers can be computed by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from engine.interface.types import Pooling
from server.admission.keyring import ANYBODY
from server.api.batches.batch_lines import LineRequest
from server.http.batches.line_execution import execute
from server.text.label_head import HeadActivation, LabelHead
from server.text.pair_prompt import AnswerTokens, PairPrompt
from server.text.sentence_encoder import SentenceEncoder
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import EOS, FakeTextModel
from tests.server.conftest import RunningServer, StartServer
from tests.server.http.test_metrics import read_metrics

LIMIT = 40


class Encoder(FakeEngineClient):
    """Of a text, its number of tokens and the first one; of a pair with labels, how long the second text is."""

    def __init__(self, num_labels: int = 0) -> None:
        super().__init__(max_model_len=LIMIT)
        self.model_info = replace(self.model_info, is_encoder=True, num_labels=num_labels)
        self.texts: list[list[int]] = []

    async def embed(self, token_ids: Any, pooling: Pooling, *, second_start: int = 0, **options: Any) -> np.ndarray:
        self.texts.append(list(token_ids))
        if self.model_info.num_labels:
            assert pooling is Pooling.CLS
            num_second = len(token_ids) - second_start
            return np.arange(self.model_info.num_labels, dtype=np.float32) + num_second - 3
        return np.array([len(token_ids), token_ids[0]], np.float32)


def sentences(**changes: Any) -> FakeTextModel:
    model = FakeTextModel()
    prompts = MappingProxyType({"query": "q:", "document": "d:"})
    model.sentences = replace(SentenceEncoder(Pooling.MEAN, prompts=prompts), **changes)
    return model


def labelled(*labels: str, activation: HeadActivation = HeadActivation.SIGMOID) -> FakeTextModel:
    model = FakeTextModel()
    model.head = LabelHead(labels, activation)
    return model


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


@pytest.fixture
async def reranker(start_server: StartServer) -> RunningServer:
    return await start_server(Encoder(num_labels=1), text_model=labelled("LABEL_0"))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "text"),
        ({"prompt_name": "query"}, "q:text"),
        ({"input_type": "search_document"}, "d:text"),
        ({"input_type": "classification"}, "text"),
        ({"truncate_prompt_tokens": 3}, "tex"),
        ({"truncate_prompt_tokens": -1, "prompt_name": "query"}, "q:text"),
    ],
)
async def test_what_an_encoder_reads(start_server: StartServer, more: dict[str, Any], expected: str) -> None:
    engine = Encoder()
    server = await start_server(engine, text_model=sentences())
    status, answer = await server.post("/v1/embeddings", {"input": "text", **more})
    assert status == 200
    assert engine.texts == [list(expected.encode())]
    assert answer["usage"]["prompt_tokens"] == len(expected)


async def test_a_text_of_as_many_tokens_as_the_model_takes(start_server: StartServer) -> None:
    server = await start_server(Encoder(), text_model=sentences())
    assert (await server.post("/v1/embeddings", {"input": "x" * LIMIT}))[0] == 200
    status, answer = await server.post("/v1/embeddings", {"input": "x" * (LIMIT + 1)})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    status, answer = await server.post("/v1/embeddings", {"input": "x" * 10_000, "truncate_prompt_tokens": -1})
    assert (status, answer["usage"]["prompt_tokens"]) == (200, LIMIT)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt_name": "web"}, "prompt_name", "the model has the prompts 'query', 'document'"),
        ({"input_type": "web"}, "input_type", "search_query"),
        ({"dimensions": 1}, "dimensions", "was not made for shorter embeddings"),
        ({"truncate_prompt_tokens": 1}, "truncate_prompt_tokens", "at least 2, or -1"),
        ({"truncate_prompt_tokens": True}, "truncate_prompt_tokens", "at least 2, or -1"),
    ],
)
async def test_what_an_encoder_refuses(start_server: StartServer, body: Any, param: str, words: str) -> None:
    server = await start_server(Encoder(), text_model=sentences())
    status, answer = await server.post("/v1/embeddings", {"input": "a", **body})
    assert (status, answer["error"]["param"]) == (400, param)
    assert words in answer["error"]["message"]


async def test_dimensions_of_a_model_that_was_made_for_them(start_server: StartServer) -> None:
    server = await start_server(Encoder(), text_model=sentences(takes_dimensions=True, dimensions=(1,)))
    _, answer = await server.post("/v1/embeddings", {"input": "a", "dimensions": 1})
    assert answer["data"][0]["embedding"] == [1.0]
    _, answer = await server.post("/v1/embeddings", {"input": "a", "dimensions": 2})
    assert "must be one of 1" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
    ],
)
async def test_an_encoder_generates_nothing(start_server: StartServer, path: str, body: Any) -> None:
    server = await start_server(Encoder(), text_model=sentences())
    status, answer = await server.post(path, {"model": "fake", **body})
    assert status == 400
    assert "makes embeddings (/v1/embeddings) and generates no text" in answer["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
async def test_documents_are_ordered_by_score(reranker: RunningServer, path: str) -> None:
    body = {"model": "fake", "query": "q", "documents": ["b", {"text": "dddd"}, "ccc"], "top_n": 2}
    status, answer = await reranker.post(path, body)
    assert status == 200
    assert [result["index"] for result in answer["results"]] == [1, 2]
    assert [result["relevance_score"] for result in answer["results"]] == [sigmoid(1), sigmoid(0)]
    has_documents = path != "/v2/rerank"
    assert [result.get("document") for result in answer["results"]] == [
        {"text": text} if has_documents else None for text in ("dddd", "ccc")
    ]
    engine = reranker.engine
    assert isinstance(engine, Encoder)
    assert engine.texts[0] == [ord("q"), EOS, ord("b")]
    assert answer["usage"]["total_tokens"] == sum(map(len, engine.texts))


async def test_raw_scores_and_documents_on_demand(reranker: RunningServer) -> None:
    body = {"query": "q", "documents": ["b", "dddd"], "use_activation": False, "return_documents": False}
    _, answer = await reranker.post("/v1/rerank", body)
    assert answer["results"] == [{"index": 1, "relevance_score": 1.0}, {"index": 0, "relevance_score": -2.0}]
    _, answer = await reranker.post("/v2/rerank", {**body, "return_documents": True})
    assert answer["results"][0]["document"] == {"text": "dddd"}


async def test_texts_are_ranked_in_the_form_of_text_embeddings_inference(reranker: RunningServer) -> None:
    texts = {"query": "q", "texts": ["b", "dddd", "ccc"]}
    for path in ("/rerank", "/v1/rerank"):
        status, answer = await reranker.post(path, texts)
        assert (status, answer) == (200, [{"index": i, "score": sigmoid(s)} for i, s in ((1, 1), (2, 0), (0, -2))])
    _, answer = await reranker.post("/rerank", {**texts, "raw_scores": True, "return_text": True, "top_n": 1})
    assert answer == [{"index": 1, "score": 1.0, "text": "dddd"}]
    long = {"query": "q", "texts": ["d" * 10_000]}
    assert (await reranker.post("/rerank", long))[0] == 400
    status, answer = await reranker.post("/rerank", {**long, "truncate": True})
    assert (status, len(answer)) == (200, 1)
    for body, param in (({"query": "q", "texts": []}, "texts"), ({**texts, "return_text": 1}, "return_text")):
        status, answer = await reranker.post("/rerank", body)
        assert (status, answer["error"]["param"]) == (400, param)


@pytest.mark.parametrize("name", ["texts", "documents"])
async def test_a_batch_ranks_in_the_form_of_its_lines(reranker: RunningServer, name: str) -> None:
    body = {"query": "q", name: ["b", "dddd", "ccc"]}
    line = LineRequest("a", "/v1/rerank", {"model": "fake", **body})
    answer = await execute(reranker.served, ANYBODY, line)
    expected, told = (await reranker.post("/v1/rerank", body))[1], json.loads(answer.body)
    if name == "documents":
        expected = {**expected, "id": told["id"]}
    assert (answer.status, told) == (200, expected)
    assert answer.usage.input_tokens > 0


@pytest.mark.parametrize(
    ("more", "num_tokens"),
    [
        ({"truncate_prompt_tokens": 9}, 9),
        ({"max_tokens_per_doc": 4}, 6),
        ({"max_tokens_per_doc": 4, "max_tokens_per_query": 2, "query": "qrstu"}, 7),
        ({"max_tokens_per_doc": 0, "max_tokens_per_query": 0, "truncate_prompt_tokens": -1}, LIMIT),
        ({"truncate_prompt_tokens": -1}, LIMIT),
    ],
)
async def test_pairs_are_cut(reranker: RunningServer, more: dict[str, Any], num_tokens: int) -> None:
    status, answer = await reranker.post("/v1/rerank", {"query": "q", "documents": ["d" * 100], **more})
    assert (status, answer["usage"]["total_tokens"]) == (200, num_tokens)
    pair = {"queries": more.pop("query", "q"), "documents": ["d" * 100], **more}
    status, answer = await reranker.post("/v1/score", pair)
    assert (status, answer["usage"]["total_tokens"]) == (200, num_tokens)


async def test_scores_of_pairs(reranker: RunningServer) -> None:
    for path in ("/v1/score", "/score"):
        _, answer = await reranker.post(path, {"text_1": "q", "text_2": ["a", "bbb"]})
        assert [entry["score"] for entry in answer["data"]] == [sigmoid(-2), sigmoid(0)]
    _, answer = await reranker.post("/v1/score", {"queries": ["q", "rr"], "documents": ["a", "bbb"]})
    assert len(answer["data"]) == 2
    assert answer["usage"]["prompt_tokens"] == 3 + 6


async def test_queries_and_documents_are_cut_each_for_itself(start_server: StartServer) -> None:
    engine = Encoder()
    server = await start_server(engine, text_model=sentences())
    limits = {"max_tokens_per_query": 4, "max_tokens_per_doc": 3}
    await server.post("/v1/score", {"text_1": "abcd", "text_2": ["efgh", "i"], **limits})
    assert engine.texts == [list(b"q:ab"), list(b"d:e"), list(b"d:i")]


async def test_no_cosine_is_above_one(start_server: StartServer) -> None:
    class Told(Encoder):
        async def embed(self, token_ids: Any, pooling: Pooling, **options: Any) -> np.ndarray:
            return np.random.default_rng(token_ids[-1]).standard_normal(48, np.float32)

    server = await start_server(Told(), text_model=sentences())
    texts = [chr(code) for code in range(32, 127)]
    _, answer = await server.post("/v1/score", {"text_1": texts, "text_2": texts})
    scores = [entry["score"] for entry in answer["data"]]
    assert scores == pytest.approx([1.0] * len(texts))
    assert max(scores) == 1.0


async def test_a_prompt_may_be_left_out_of_the_pooling(start_server: StartServer) -> None:
    class Told(Encoder):
        async def embed(self, token_ids: Any, pooling: Pooling, *, first_pooled: int = 0, **options: Any) -> np.ndarray:
            return np.array([first_pooled, 1], np.float32)

    server = await start_server(Told(), text_model=sentences(pools_prompts=False, default_prompt=""))
    for body, first in (
        ({"input": "text"}, 0), ({"input": "text", "prompt_name": "query"}, 2),
        ({"input": [[97, 98]], "prompt_name": "query"}, 0),
    ):  # fmt: skip
        _, answer = await server.post("/v1/embeddings", body)
        expected = np.array([first, 1]) / np.linalg.norm([first, 1])
        assert answer["data"][0]["embedding"] == pytest.approx(expected, abs=1e-6)


async def test_a_prompt_before_texts_that_are_compared_may_be_left_out_too(start_server: StartServer) -> None:
    first: list[int] = []

    class Told(Encoder):
        async def embed(self, token_ids: Any, pooling: Pooling, *, first_pooled: int = 0, **options: Any) -> np.ndarray:
            first.append(first_pooled)
            return np.ones(4, np.float32)

    server = await start_server(Told(), text_model=sentences(pools_prompts=False, default_prompt=""))
    await server.post("/v1/score", {"text_1": "abcd", "text_2": ["efgh", "i"]})
    assert first == [2, 2, 2]


async def test_several_poolings_stand_one_behind_the_other(start_server: StartServer) -> None:
    asked: list[Any] = []

    class Told(Encoder):
        async def embed(self, token_ids: Any, pooling: Any, **options: Any) -> np.ndarray:
            asked.append(pooling)
            return np.ones(4, np.float32)

    both = (Pooling.MAX, Pooling.MEAN)
    server = await start_server(Told(), text_model=sentences(pooling=both))
    await server.post("/v1/embeddings", {"input": "a"})
    await server.post("/v1/embeddings", {"input": "a", "pooling": "weightedmean"})
    assert asked == [both, Pooling.WEIGHTED_MEAN]


async def test_scores_of_an_embedding_model_are_cosines(start_server: StartServer) -> None:
    engine = Encoder()
    server = await start_server(engine, text_model=sentences())
    _, answer = await server.post("/v1/rerank", {"query": "aa", "documents": ["bb", "bbbbbbbbbbbbbbbbbbbb"]})
    assert engine.texts[0] == list(b"q:aa")
    assert engine.texts[1] == list(b"d:bb")

    def cosine(a: tuple[int, int], b: tuple[int, int]) -> float:
        return (a[0] * b[0] + a[1] * b[1]) / math.hypot(*a) / math.hypot(*b)

    query = (4, ord("q"))
    expected = [cosine(query, (length, ord("d"))) for length in (4, 22)]
    assert [result["relevance_score"] for result in answer["results"]] == pytest.approx(expected)


async def test_classes(start_server: StartServer) -> None:
    model = labelled("no", "perhaps", "yes", activation=HeadActivation.SOFTMAX)
    server = await start_server(Encoder(num_labels=3), text_model=model)
    _, answer = await server.post("/classify", {"input": ["a", "bb"]})
    total = 1 + math.e + math.e**2
    assert [entry["label"] for entry in answer["data"]] == ["yes", "yes"]
    assert answer["data"][0]["probs"] == pytest.approx([1 / total, math.e / total, math.e**2 / total])
    _, answer = await server.post("/classify", {"input": "a", "use_activation": False})
    assert answer["data"][0] == {"index": 0, "label": "yes", "probs": [-2.0, -1.0, 0.0], "num_classes": 3}
    status, answer = await server.post("/v1/rerank", {"query": "q", "documents": ["a"]})
    assert (status, answer["error"]["code"]) == (400, "unsupported_task")


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/v1/embeddings", {"input": "a"}, "model", "scores pairs of texts (/v1/rerank, /v1/score) and makes no embed"),
        ("/v1/rerank", {"query": "q", "documents": []}, "documents", "1 to 2048"),
        ("/v1/rerank", {"query": "q", "documents": ["a"] * 2049}, "documents", "at most 2048"),
        ("/v1/rerank", {"query": "q", "documents": ["a", 1]}, "documents", "has the entry 1"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query", "empty"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n", "1"),
        ("/v1/rerank", {"query": "q", "documents": ["a" * 100]}, "documents", "maximum context length"),
        ("/v1/score", {"text_1": "q"}, "text_2", "either text_2 or documents"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1", "one first text"),
    ],
)
async def test_what_a_reranker_refuses(reranker: RunningServer, path: str, body: Any, param: str, words: str) -> None:
    status, answer = await reranker.post(path, body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert words in answer["error"]["message"]


async def test_a_decoder_has_no_classes(server: RunningServer) -> None:
    status, answer = await server.post("/classify", {"input": "a"})
    assert (status, answer["error"]["code"]) == (400, "unsupported_task")


async def test_a_decoder_in_a_folder_of_sentence_transformers_embeds_alone(start_server: StartServer) -> None:
    server = await start_server(text_model=sentences(), task=None)
    status, answer = await server.post("/v1/completions", {"prompt": "a"})
    assert (status, answer["error"]["code"]) == (400, "unsupported_task")
    _, answer = await server.get("/v1/models")
    assert answer["data"][0]["task"] == "embed"
    assert answer["models"] == []


async def test_the_setting_says_what_a_model_is_for(start_server: StartServer) -> None:
    server = await start_server(text_model=sentences(), task="generate")
    assert (await server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}))[0] == 200
    server = await start_server(task="embed")
    assert (await server.post("/v1/completions", {"prompt": "a"}))[0] == 400


class Judge(FakeEngineClient):
    """A decoder that finds a document the better the longer it is."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[list[int]] = []

    async def next_logprobs(self, token_ids: Any, answers: Any, *, cache_salt: Any, **options: Any) -> np.ndarray:
        assert tuple(answers) == (ord("y"), ord("n"))
        assert cache_salt is None
        self.texts.append(list(token_ids))
        return np.array([-3.0, -float(len(token_ids))], np.float32)


async def test_a_decoder_that_answers_with_a_token(start_server: StartServer) -> None:
    model, engine = FakeTextModel(), Judge()
    model.pairs, model.answers = PairPrompt("q=", ";d=", "?"), AnswerTokens(ord("y"), ord("n"))
    server = await start_server(engine, text_model=model)
    _, answer = await server.post("/v1/rerank", {"query": "a", "documents": ["b", "cc"], "return_documents": False})
    assert engine.texts == [list(b"q=a;d=b?"), list(b"q=a;d=cc?")]
    assert answer["results"] == [
        {"index": 1, "relevance_score": pytest.approx(sigmoid(6))},
        {"index": 0, "relevance_score": pytest.approx(sigmoid(5))},
    ]
    assert answer["usage"]["total_tokens"] == 17
    _, answer = await server.post(
        "/v1/score",
        {"text_1": ["a", "b"], "text_2": ["cc", "dd"], "truncate_prompt_tokens": 8, "use_activation": False},
    )
    assert engine.texts[2:] == [list(b"q=a;d=c?"), list(b"q=b;d=d?")]
    assert [entry["score"] for entry in answer["data"]] == [5.0, 5.0]
    _, answer = await server.post("/v1/rerank", {"query": "a", "documents": ["bcd"], "max_tokens_per_doc": 1})
    assert engine.texts[-1] == list(b"q=a;d=b?")
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/classify", {"input": "a"})):
        status, answer = await server.post(path, body)
        assert (status, answer["error"]["code"]) == (400, "unsupported_task")
    _, answer = await server.get("/v1/models")
    assert answer["data"][0]["task"] == "rerank"


async def test_texts_count_as_prompt_tokens(start_server: StartServer) -> None:
    server = await start_server(Encoder(), text_model=sentences())
    await server.post("/v1/embeddings", {"input": ["abc", "de"]})
    await server.post("/v1/embeddings", {"input": "x" * (LIMIT + 1)})
    assert (await read_metrics(server))["eagre_prompt_tokens_total"] == 5


async def test_ollama_cuts_long_texts_unless_it_must_not(start_server: StartServer) -> None:
    server = await start_server(Encoder(), text_model=sentences())
    body = {"model": "fake", "input": "x" * (LIMIT + 1)}
    status, answer = await server.post("/api/embed", body)
    assert (status, answer["prompt_eval_count"]) == (200, LIMIT)
    assert (await server.post("/api/embed", {**body, "truncate": False}))[0] == 400
    assert (await server.post("/api/embeddings", {"model": "fake", "prompt": "x" * (LIMIT + 1)}))[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/score", {"text_1": "", "text_2": "b"}, "text_2"),
        ("/score", {"queries": "a", "documents": ["b", ""]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b", ""]}, "documents"),
        ("/v1/rerank", {"query": "a", "texts": ["b", ""]}, "texts"),
    ],
)
async def test_a_text_without_tokens_is_refused(
    path: str, body: dict[str, Any], param: str, start_server: StartServer
) -> None:
    server = await start_server()  # a decoder, whose tokenizer adds nothing to a text
    status, answer = await server.post(path, body)
    assert (status, answer["error"]["param"]) == (400, param), answer
    assert "a text without tokens" in answer["error"]["message"]
