"""The request bodies of /tokenize, /detokenize and /v1/embeddings."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator

from server.api.openai.chat_request import MAX_MESSAGES, Message, as_template_messages
from server.api.openai.prompt_forms import AnyLlamaPrompts, as_sources
from server.generation.prompt_sources import PromptSource
from server.media.picture import Picture, pictures_of, within
from server.protocol.base_models import RequestBody, bounded
from server.protocol.chat_tools import ChatTools
from server.protocol.errors import invalid_value, shorten
from server.protocol.generation_fields import TemplateFields

MAX_INPUTS = 2048  # of one embeddings request, as in OpenAI's API
LEAST_CUT = 2  # tokens of a text that is cut: what a model needs around it
MAX_TOKENS = 1 << 19  # of one detokenize request


class ModelQuery(RequestBody):
    model: str | None = None


class TokenizeRequest(ModelQuery, TemplateFields):
    """vLLM's request to tokenize a text or a conversation."""

    prompt: str | None = None
    messages: (
        Annotated[list[Message], Field(min_length=1, fail_fast=True), bounded("messages", MAX_MESSAGES)] | None
    ) = None
    tools: ChatTools | None = None
    add_special_tokens: bool | None = None  # of a prompt; true by default
    return_token_strs: bool | None = None
    content: str | None = None  # llama.cpp's name of a text, whose answer has llama.cpp's form
    add_special: bool | None = None  # of a content; false by default
    parse_special: bool | None = None  # of a content; true by default
    with_pieces: bool | None = None  # of a content

    @property
    def model_name(self) -> str | None:
        """The name of the model that the client gave."""
        return self.model

    @property
    def pictures(self) -> Sequence[Picture]:
        """The pictures of the conversation."""
        contents = [within(message.content, f"messages[{at}]") for at, message in enumerate(self.messages or ())]
        return tuple(pictures_of({"content": content} for content in contents))

    def to_template(self) -> list[dict[str, Any]]:
        """The messages in the form that chat templates expect."""
        return as_template_messages(self.messages or ())

    @classmethod
    def parse(cls, body: Any) -> Self:
        query = super().parse(body)
        given = [query.prompt, query.messages, query.content]
        if given.count(None) != 2:
            raise invalid_value("give either prompt or messages", "prompt")
        return query


class DetokenizeRequest(ModelQuery):
    """vLLM's request for the text of token ids."""

    tokens: Annotated[list[int], Field(fail_fast=True), bounded("tokens", MAX_TOKENS)]
    return_token_texts: bool | None = None
    skip_special_tokens: bool | None = None  # false by default: control tokens are in the text by their names


def _as_inputs(value: Any) -> list[PromptSource]:
    return as_sources(value, "input", most=MAX_INPUTS)


def _as_dimensions(value: Any) -> Any:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"dimensions is {shorten(value)}; it must be an integer of at least 1")
    return value


InputType = Literal["search_query", "search_document", "classification", "clustering", "query", "document", "passage"]


def as_truncation(value: Any) -> Any:
    """The number of tokens to which texts are cut; raises ValueError."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and (not is_integer or (value < LEAST_CUT and value != -1)):
        raise ValueError(
            f"truncate_prompt_tokens is {shorten(value)}; it must be an integer of at least {LEAST_CUT}, or -1 for as "
            "many as the model takes"
        )
    return value


class EmbeddingsRequest(ModelQuery):
    """OpenAI's request for embeddings, with the pooling by name and llama.cpp's further forms of inputs."""

    input: Annotated[list[Any], PlainValidator(_as_inputs, json_schema_input_type=AnyLlamaPrompts)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, BeforeValidator(_as_dimensions, json_schema_input_type=int)] | None = None
    # The model's own by default.
    pooling: Literal["cls", "last", "mean", "mean_sqrt_len", "weightedmean", "max"] | None = None
    prompt_name: str | None = None  # of the model's prompts, which is put before each text
    input_type: InputType | None = None  # Cohere's word for it
    truncate_prompt_tokens: Annotated[int, BeforeValidator(as_truncation, json_schema_input_type=int)] | None = None
    user: str | None = None
