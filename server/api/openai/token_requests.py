"""The bodies of requests that ask for no text: tokens, the text of tokens, embeddings."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, PrivateAttr

from server.api.openai.chat_request import MAX_MESSAGES, Message
from server.api.openai.completion_request import AnyPrompts, Prompt, as_prompts
from server.protocol.base_models import StrictModel, bounded
from server.protocol.errors import ApiError, shorten
from server.protocol.template_fields import TemplateFields
from server.protocol.tools import MAX_TOOLS, Tool
from server.protocol.unknown_fields import UnknownFields

MAX_INPUTS = 256  # of one embeddings request
MAX_TOKENS = 1 << 19  # of one detokenize request


class Query(StrictModel):
    """What these requests have in common."""

    model: str | None = None

    _ignored: tuple[str, ...] = PrivateAttr(default=())

    @classmethod
    def parse(cls, body: Any) -> Self:
        """Checks a decoded JSON body.

        Raises:
            ApiError, FieldError, ValidationError: it is not a valid request.
        """
        strangers = UnknownFields()
        query = cls.model_validate(strangers.sort_out(body, cls.model_fields, {}), context=strangers)
        query._ignored = tuple(strangers.ignored)
        return query

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names in the body that mean nothing to this server."""
        return self._ignored


class TokenizeRequest(Query, TemplateFields):
    """vLLM's: a text or a conversation."""

    prompt: str | None = None
    messages: (
        Annotated[list[Message], Field(min_length=1, fail_fast=True), bounded("messages", MAX_MESSAGES)] | None
    ) = None
    tools: Annotated[list[Tool], Field(fail_fast=True), bounded("tools", MAX_TOOLS)] | None = None
    add_special_tokens: bool | None = None  # of a prompt; true by default
    return_token_strs: bool | None = None

    @classmethod
    def parse(cls, body: Any) -> Self:
        query = super().parse(body)
        if (query.prompt is None) == (query.messages is None):
            raise ApiError("give either prompt or messages", param="prompt", code="invalid_value")
        return query


class DetokenizeRequest(Query):
    """vLLM's: token ids."""

    tokens: Annotated[list[int], Field(fail_fast=True), bounded("tokens", MAX_TOKENS)]
    return_token_texts: bool | None = None


def _as_inputs(value: Any) -> list[Prompt]:
    return as_prompts(value, "input", most=MAX_INPUTS)


def _as_dimensions(value: Any) -> Any:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"dimensions is {shorten(value)}; it must be an integer of at least 1")
    return value


class EmbeddingsRequest(Query):
    """OpenAI's, with the pooling by name."""

    input: Annotated[list[Prompt], PlainValidator(_as_inputs, json_schema_input_type=AnyPrompts)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, BeforeValidator(_as_dimensions, json_schema_input_type=int)] | None = None
    pooling: Literal["last", "mean"] | None = None  # "last" by default
    user: str | None = None
