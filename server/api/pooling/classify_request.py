"""The request body of /classify, in vLLM's form."""

from typing import Annotated, Any

from pydantic import PlainValidator

from server.api.openai.prompt_forms import AnyLlamaPrompts, as_sources
from server.api.openai.token_requests import MAX_INPUTS, ModelQuery
from server.api.pooling.rerank_request import Truncation
from server.generation.prompt_sources import PromptSource


def _as_inputs(value: Any) -> list[PromptSource]:
    return as_sources(value, "input", most=MAX_INPUTS)


class ClassifyRequest(ModelQuery):
    """Texts that get labels."""

    input: Annotated[list[Any], PlainValidator(_as_inputs, json_schema_input_type=AnyLlamaPrompts)]
    truncate_prompt_tokens: Truncation | None = None
    use_activation: bool | None = None  # true by default
