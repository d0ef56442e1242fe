"""The request bodies of llama.cpp's routes that generate nothing."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import PlainValidator

from server.api.openai.prompt_forms import AnyLlamaPrompts, as_sources
from server.api.openai.token_requests import MAX_INPUTS
from server.generation.prompt_sources import PromptSource
from server.protocol.base_models import RequestBody
from server.protocol.errors import invalid_value


def _as_content(value: Any) -> list[PromptSource]:
    return as_sources(value, "content", most=MAX_INPUTS)


class EmbeddingRequest(RequestBody):
    """llama.cpp's request for embeddings, whose text has the name `content` or `input`."""

    model: str | None = None
    content: Annotated[list[Any], PlainValidator(_as_content, json_schema_input_type=AnyLlamaPrompts)] | None = None
    input: Annotated[list[Any], PlainValidator(_as_content, json_schema_input_type=AnyLlamaPrompts)] | None = None

    @classmethod
    def parse(cls, body: Any) -> Self:
        query = super().parse(body)
        if (query.content is None) == (query.input is None):
            raise invalid_value("give either content or input", "content")
        return query

    @property
    def prompts(self) -> list[PromptSource]:
        return self.content or self.input or []


class LoadRequest(RequestBody):
    """A request to bring a model into memory."""

    model: str
