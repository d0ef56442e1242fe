"""Fields of request bodies for the chat template, besides messages and tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import BeforeValidator, model_validator

from server.protocol.base_models import StrictModel
from server.protocol.errors import invalid_value, shorten
from server.protocol.json_limits import is_deeper

MAX_VARIABLES = 64
MAX_VARIABLE_BYTES = 64 << 10  # of all of them, as JSON
MAX_DOCUMENTS = 256
MAX_DEPTH = 16  # of lists and objects within each other
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"]
RESERVED = frozenset(
    {
        "add_generation_prompt", "bos_token", "chat_template", "continue_final_message", "documents", "eos_token",
        "messages", "tokenize", "tools",
    }
)  # fmt: skip


def _as_variables(value: Any) -> Any:
    name = "chat_template_kwargs"
    if not isinstance(value, dict):
        raise ValueError(f'{name} is {shorten(value)}; it must be an object like {{"enable_thinking": false}}')
    if len(value) > MAX_VARIABLES:
        raise ValueError(f"{name} has {len(value)} names; at most {MAX_VARIABLES} are allowed")
    for reserved in sorted(RESERVED.intersection(value)):
        raise ValueError(
            f"{name} has the name {reserved}, which is reserved: a parameter or the server gives its value"
        )
    _refuse_deep(value, name)
    num_bytes = len(orjson.dumps(value))
    if num_bytes > MAX_VARIABLE_BYTES:
        raise ValueError(f"{name} has {num_bytes} bytes as JSON; at most {MAX_VARIABLE_BYTES} are allowed")
    return value


def _as_documents(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(document, dict) for document in value):
        raise ValueError(f"documents is {shorten(value)}; it must be a list of objects")
    if len(value) > MAX_DOCUMENTS:
        raise ValueError(f"documents has {len(value)} entries; at most {MAX_DOCUMENTS} are allowed")
    _refuse_deep(value, "documents")
    return value


def _refuse_deep(value: Any, name: str) -> None:
    if is_deeper(value, MAX_DEPTH):
        raise ValueError(f"{name} is nested deeper than {MAX_DEPTH} levels, the limit")


def effort_variables(effort: str | None) -> dict[str, Any]:
    """The template's variables for a reasoning effort. For "none" some templates have a switch instead."""
    switches = {"enable_thinking": False, "thinking": False} if effort == "none" else {}
    return {} if effort is None else {"reasoning_effort": effort, **switches}


class TemplateFields(StrictModel):
    """vLLM's names. null means the default."""

    add_generation_prompt: bool | None = None  # true, unless the last message is continued
    continue_final_message: bool | None = None
    chat_template_kwargs: (
        Annotated[dict[str, Any], BeforeValidator(_as_variables, json_schema_input_type=dict[str, Any])] | None
    ) = None
    documents: (
        Annotated[list[dict[str, Any]], BeforeValidator(_as_documents, json_schema_input_type=list[dict[str, Any]])]
        | None
    ) = None

    @model_validator(mode="after")
    def _a_turn_begins_or_goes_on(self) -> TemplateFields:
        if self.add_generation_prompt and self.continue_final_message:
            raise invalid_value(
                "add_generation_prompt and continue_final_message are both true; a new turn begins, "
                "or the last one goes on",
                "continue_final_message",
            )
        return self

    @property
    def begins_turn(self) -> bool:
        """Whether the prompt ends with the beginning of an assistant's turn."""
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt

    @property
    def template_variables(self) -> dict[str, Any]:
        return {**(self.chat_template_kwargs or {}), **({"documents": self.documents} if self.documents else {})}
