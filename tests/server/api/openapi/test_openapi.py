"""The OpenAPI document and the answers that it describes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from aiohttp import web
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from engine.interface.types import Pooling
from server.api.openapi import answers, handlers, messages
from server.api.openapi.descriptions import DESCRIPTIONS
from server.api.openapi.openapi import build_document
from server.api.openapi.operations import OPERATIONS
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer


class EmbeddingEngine(FakeEngineClient):
    async def embed(self, token_ids: Any, pooling: Pooling, **options: Any) -> np.ndarray:
        return np.array([1.0, 0.0], np.float32)


def routes_of(app: web.Application) -> set[tuple[str, str]]:
    return {
        (route.method, route.resource.canonical.replace(":.+}", "}"))
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }


async def test_every_route_is_in_the_document_and_every_entry_is_a_route(server: RunningServer) -> None:
    assert {(operation.method, operation.path) for operation in OPERATIONS} == routes_of(server.app)


def test_every_parameter_has_a_sentence() -> None:
    bodies = {operation.body for operation in OPERATIONS if operation.body is not None}
    named = {name for body in bodies for name in body.model_fields}
    of_bodies = {f"{body.__name__}.{name}" for body in bodies for name in body.model_fields}
    assert named <= set(DESCRIPTIONS)
    assert set(DESCRIPTIONS) <= named | of_bodies, "sentences about parameters that are gone"


def test_the_document_is_whole() -> None:
    document = build_document("1.2.3")
    schemas = document["components"]["schemas"]
    for reference in references_in(document):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", ["/props", "/slots", "/lora-adapters", "/engine/events"])
def test_where_the_address_may_name_a_model_the_document_says_so(path: str) -> None:
    parameters = build_document("1.2.3")["paths"][path]["get"]["parameters"]
    assert [(each["name"], each["in"]) for each in parameters] == [("model", "query")]


def references_in(part: Any) -> list[str]:
    if isinstance(part, list):
        return [found for item in part for found in references_in(item)]
    if not isinstance(part, dict):
        return []
    own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
    return own + [found for item in part.values() for found in references_in(item)]


@pytest.mark.parametrize(
    ("schema", "body", "is_valid"),
    [
        ("CompletionRequest", {"prompt": "a", "temperature": 2}, True),
        ("CompletionRequest", {"prompt": [[1], [2, 3]], "stop": "x", "logit_bias": {"5": 1}}, True),
        ("CompletionRequest", {"prompt": "a", "temperature": 2.5}, False),
        ("CompletionRequest", {"prompt": "a", "top_p": 0}, False),
        ("CompletionRequest", {"prompt": 5}, False),
        ("CompletionRequest", {"prompt": "a", "no_stop_trim": True}, True),
        ("ChatCompletionRequest", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, True),
        ("ChatCompletionRequest", {"messages": []}, False),
        ("EmbeddingsRequest", {"input": "a", "encoding_format": "base32"}, False),
    ],
)
def test_schemas_say_what_bodies_may_be(schema: str, body: dict[str, Any], is_valid: bool) -> None:
    document = build_document("1")
    whole = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    assert Draft202012Validator(whole).is_valid(body) == is_valid


def test_a_strict_servers_document_has_no_room_for_strangers() -> None:
    schemas = build_document("1", is_strict=True)["components"]["schemas"]
    assert schemas["CompletionRequest"]["additionalProperties"] is False


async def test_answers_are_as_the_document_says(start_server: StartServer) -> None:
    server = await start_server(EmbeddingEngine())
    everything = {"return_token_ids": True, "include_metrics": True, "prompt_logprobs": 1, "n": 2}
    chat = {"messages": [{"role": "user", "content": "abc"}]}
    asked: list[tuple[str, dict[str, Any], type[BaseModel]]] = [
        ("/v1/completions", {"prompt": "abc", "logprobs": 1, **everything}, answers.Completion),
        ("/v1/chat/completions", {**chat, "logprobs": True, **everything}, answers.ChatCompletion),
        ("/v1/embeddings", {"input": "abc"}, answers.Embeddings),
        ("/tokenize", {"prompt": "abc", "return_token_strs": True}, answers.Tokens),
        ("/detokenize", {"tokens": [97, 98]}, answers.DetokenizedText),
        ("/v1/chat/completions/render", chat, answers.RenderedPrompt),
    ]
    for path, body, kind in asked:
        status, answer = await server.post(path, body)
        assert status == 200, answer
        kind.model_validate(answer)
    for path, body, kind in (
        ("/v1/completions", {"prompt": "abc"}, answers.Completion),
        ("/v1/chat/completions", chat, answers.ChatChunk),
        ("/v1/responses", {"input": "abc"}, answers.ResponseEvent),
    ):
        wanted = {} if path == "/v1/responses" else {"stream_options": {"include_usage": True}, "include_metrics": True}
        streamed = await server.stream_bytes(path, body | wanted)
        events = [line.removeprefix(b"data: ") for line in streamed.splitlines() if line.startswith(b"data: {")]
        assert events
        for event in events:
            kind.model_validate(orjson.loads(event))
    for path, kind in (("/v1/models", answers.ModelList), ("/version", answers.Version)):
        async with server.http.get(server.url + path) as response:
            kind.model_validate(await response.json())
    async with server.http.post(server.url + "/v1/completions", json={}) as response:
        answers.Error.model_validate(await response.json())
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        messages.AnthropicError.model_validate((await server.post(path, {}))[1])


async def test_the_document_is_served(server: RunningServer) -> None:
    async with server.http.get(server.url + "/openapi.json") as response:
        assert response.content_type == "application/json"
        document = await response.json()
    assert document["paths"]["/v1/completions"]["post"]["requestBody"]
    async with server.http.get(server.url + "/docs") as response:
        assert response.content_type == "text/html"
        assert re.search(r'"static/docs-[0-9a-f]{16}\.js"', await response.text())


async def test_those_who_ask_together_wait_for_one_document(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, made = await start_server(), []

    def encode(*, is_strict: bool, apis: Sequence[str]) -> bytes:
        made.append(is_strict)
        return b"{}"

    monkeypatch.setattr(handlers, "_encode", encode)
    answers = await asyncio.gather(*(server.get("/openapi.json") for _ in range(5)))
    assert answers == [(200, {})] * 5
    assert made == [False]
