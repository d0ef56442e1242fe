"""The request body of POST /v1/responses, and of a `response.create` message."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from sampling.host.params import MAX_LOGPROBS
from server.api.responses.client_tools import ClientTool, ClientTools, OtherTool, ShellTool
from server.api.responses.input_items import (
    AdditionalToolsItem,
    InputItem,
    ItemId,
    ToolSearchOutputItem,
    checked_items,
    report,
)
from server.api.responses.offered_tools import OfferedTools
from server.api.responses.tool_choice import ToolChoice
from server.protocol.base_models import LenientPart, StrictModel, UnknownFields
from server.protocol.errors import ApiError, UnknownField, invalid_value, shorten
from server.protocol.foreign_parameters import Unsupported
from server.protocol.generation_fields import (
    Effort,
    GenerationFields,
    StreamOptions,
    TemplateFields,
    ThinkingBudget,
    effort_variables,
)
from server.protocol.json_limits import is_deeper
from server.protocol.structured_outputs import NAME_PATTERN, GrammarRequest, JsonSchema, ResponseFormat
from server.protocol.tool_choice import with_parallel
from server.protocol.tools import MAX_DEPTH

MAX_METADATA = 16  # pairs
MAX_METADATA_NAME = 64  # characters
MAX_METADATA_VALUE = 512  # characters

LOGPROBS = "message.output_text.logprobs"
_ANY_TEXT = ResponseFormat(type="text")

# Fields of the other routes that this one does not have, and the values of them that ask for nothing.
_OF_OTHER_ROUTES: Unsupported = {
    "n": (1,),
    "best_of": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "include_metrics": (False,),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
    "num_prompt_output_tokens": (0,),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
}
_NOT_HERE = {*_OF_OTHER_ROUTES, "max_tokens", "json_schema", "grammar"}
_RESPONSES: Unsupported = {
    **_OF_OTHER_ROUTES,
    "background_options": ({}, {"completion_window": "soonest"}),
    "image": (),
    "moderation": (),
    "prompt": (),
    "chat_template": (),
}
_RENAMED = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "logprobs": "top_logprobs",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}


def as_metadata(value: Any) -> dict[str, str]:
    """OpenAI's object of a few short texts; raises ValueError that names the limit it exceeds."""
    value = {} if value == [] else value  # an object without entries, in PHP
    if not isinstance(value, dict):
        raise ValueError(f"metadata is {shorten(value)}; it must be an object")
    if len(value) > MAX_METADATA:
        raise ValueError(f"metadata has {len(value)} entries; at most {MAX_METADATA} are allowed")
    for name, text in value.items():
        if len(name) > MAX_METADATA_NAME:
            raise ValueError(f"metadata has a name of {len(name)} characters; at most {MAX_METADATA_NAME} are allowed")
        if not isinstance(text, str) or len(text) > MAX_METADATA_VALUE:
            raise ValueError(
                f"metadata.{name} is {shorten(text)}; it must be a string of at most {MAX_METADATA_VALUE} characters"
            )
    return value


Metadata = Annotated[dict[str, str], BeforeValidator(as_metadata)]


def _as_conversation(value: Any) -> Any:
    return value.get("id") if isinstance(value, dict) and value.keys() == {"id"} else value


def _as_items(value: Any) -> Any:
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


class TextFormat(StrictModel):
    """The Responses API's form of `response_format`; the parts of a schema are next to the type."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None  # pydantic has a `schema` of its own
    strict: bool | None = None

    @model_validator(mode="after")
    def _schema_where_it_is_asked_for(self) -> TextFormat:
        if self.type == "json_schema":
            missing = [name for name, value in (("name", self.name), ("schema", self.schema_)) if value is None]
            if missing:
                raise ValueError(f"text.format has no {missing[0]}; type json_schema needs one")
        elif self.schema_ is not None:
            raise ValueError(f"text.format has a schema, which type {self.type} does not take")
        if is_deeper(self.schema_, MAX_DEPTH):
            raise ValueError(f"text.format.schema is nested too deeply: deeper than {MAX_DEPTH} levels, the limit")
        return self

    def to_response_format(self) -> ResponseFormat:
        if self.schema_ is None or self.name is None:
            return ResponseFormat(type=self.type)
        schema = JsonSchema.model_validate(
            {"name": self.name, "description": self.description, "schema": self.schema_, "strict": self.strict}
        )
        return ResponseFormat(type="json_schema", json_schema=schema)

    def to_wire(self) -> dict[str, Any]:
        """The format in the response object."""
        if self.type != "json_schema":
            return {"type": self.type}
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "schema": self.schema_,
            "strict": self.strict,
        }


class TextConfig(LenientPart):
    """The parameter `text`."""

    PATH = "text."

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(LenientPart):
    """The reasoning options of a response."""

    PATH = "reasoning."
    effort: Effort | None = None
    # The reasoning itself is returned, never a summary.
    summary: Literal["none", "auto", "concise", "detailed"] | None = None
    generate_summary: Literal["none", "auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


class ResponseStreamOptions(StreamOptions):
    """The options of a stream of events."""

    reasoning_summary_delivery: str | None = None  # of summaries, of which there are none


def _without_other_routes(schema: dict[str, Any]) -> None:
    """Removes from the OpenAPI document what this route rejects."""
    for name in _NOT_HERE:
        schema["properties"].pop(name, None)


class ResponsesRequest(TemplateFields, GenerationFields):
    """OpenAI's request for a response, with the sampling parameters of the other routes."""

    model_config = ConfigDict(json_schema_extra=_without_other_routes)
    UNSUPPORTED = _RESPONSES

    input: Annotated[
        list[InputItem],
        Field(fail_fast=True),
        checked_items("input"),
        BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem]),
    ] = Field(default_factory=list)
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None  # of built-in tools, of which there are none
    text: TextConfig | None = None
    tools: ClientTools | None = None
    tool_choice: ToolChoice | None = None  # "auto" where there are tools
    parallel_tool_calls: bool | None = None
    metadata: Metadata | None = None
    store: bool | None = None  # true by default
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: Annotated[list[str], Field(max_length=16)] | None = None
    context_management: Annotated[list[dict[str, Any]], Field(max_length=16)] | None = None  # ignored
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    previous_response_id: ItemId | None = None
    conversation: (
        Annotated[ItemId, BeforeValidator(_as_conversation, json_schema_input_type=str | dict[str, str])] | None
    ) = None
    reasoning: Reasoning | None = None
    thinking_token_budget: ThinkingBudget | None = None  # of the reasoning
    stream_options: ResponseStreamOptions | None = None
    # Whose request it is and where it may be cached, for OpenAI's own purposes; an answer repeats them.
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None
    service_tier: str | None = None

    @classmethod
    def parse(cls, body: Any) -> Self:
        _reject_renamed(body)
        return super().parse(body)

    @classmethod
    def known_fields(cls) -> Collection[str]:
        return cls.model_fields.keys() - _NOT_HERE

    @model_validator(mode="before")
    @classmethod
    def _one_call_as_anthropic_says_it(cls, value: Any) -> Any:
        return with_parallel(value)

    @model_validator(mode="after")
    def _something_to_answer(self) -> ResponsesRequest:
        follows = self.previous_response_id is not None or self.conversation is not None
        if not self.input and not self.instructions and not follows:
            raise ApiError(
                "input is empty; without instructions, previous_response_id or conversation there must be something to "
                "answer",
                param="input",
                code="missing_required_parameter",
            )
        if self.previous_response_id is not None and self.conversation is not None:
            raise invalid_value(
                "previous_response_id and conversation are both given; a response can follow one of them",
                "previous_response_id",
            )
        return self

    @model_validator(mode="after")
    def _background_needs_a_store(self) -> ResponsesRequest:
        if self.background and self.store is False:
            raise invalid_value(
                "background is true and store is false; a response in the background can only be fetched where it is "
                "stored",
                "background",
            )
        if self.background and self.resumable:
            raise invalid_value(
                "background and resumable are both true; a response in the background is followed by its own id",
                "resumable",
            )
        return self

    @model_validator(mode="after")
    def _choice_is_among_the_tools(self, info: ValidationInfo) -> ResponsesRequest:
        follows = self.previous_response_id is not None or self.conversation is not None
        if not follows and self.offered_tools.ignores_choice:
            report(info, "tool_choice")
        for name in _left_out(self.tools or ()):
            report(info, f"tools[].{name}")
        return self

    @model_validator(mode="after")
    def _one_form_at_most(self) -> ResponsesRequest:
        if self.structured_outputs is not None and self._text_format is not None:
            raise invalid_value(
                "text.format and structured_outputs are both given; an answer can follow one of them",
                "structured_outputs",
            )
        return self

    @model_validator(mode="after")
    def _tell_what_changes_nothing(self, info: ValidationInfo) -> ResponsesRequest:
        """Reports parameters as ignored that clients send, and that would change the answers of other servers."""
        unknown = info.context
        if isinstance(unknown, UnknownFields):
            tier, text = self.service_tier, self.text
            if tier not in (None, "auto", "default"):
                unknown.add("service_tier")
            if text is not None and text.verbosity not in (None, "medium"):
                unknown.add("text.verbosity")
            if self.context_management:
                unknown.add("context_management")
        return self

    @property
    def is_stored(self) -> bool:
        """Whether the response can be fetched and followed later on."""
        return self.store is not False

    @cached_property
    def offered_tools(self) -> OfferedTools:
        """The tools of the request, and those of the items of its input.

        Raises ApiError or ValueError if they, or the choice among them, are invalid.
        """
        return self.offered_with(())

    def offered_with(self, earlier: Iterable[ClientTool]) -> OfferedTools:
        """The tools, with those of items that precede the request."""
        of_input = [
            tool
            for item in self.input
            if isinstance(item, AdditionalToolsItem | ToolSearchOutputItem)
            for tool in item.tools
        ]
        return OfferedTools(
            self.tools or (),
            [*earlier, *of_input],
            self.tool_choice,
            is_parallel=self.parallel_tool_calls is not False,
        )

    @property
    def grammar_request(self) -> GrammarRequest | None:
        """The form of the answer; calls that must be made take its place."""
        return self._form

    @property
    def wants_logprobs(self) -> bool:
        """Whether the texts of the answer have log probabilities."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.wants_logprobs else None

    @property
    def template_variables(self) -> dict[str, Any]:
        effort = None if self.reasoning is None else self.reasoning.effort
        return {**effort_variables(effort), **super().template_variables}

    @property
    def _text_format(self) -> ResponseFormat | None:
        """The format that `text` asks for; None where any text is allowed."""
        asked = None if self.text is None or self.text.format is None else self.text.format.to_response_format()
        return None if asked == _ANY_TEXT else asked

    @property
    def _form(self) -> GrammarRequest | None:
        if self.structured_outputs is not None:
            return GrammarRequest("structured_outputs", self.structured_outputs)
        return None if self._text_format is None else GrammarRequest("text.format", self._text_format)


def _left_out(tools: Iterable[ClientTool]) -> list[str]:
    """The types of the tools that are not part of the prompt."""
    return OfferedTools([tool for tool in tools if isinstance(tool, OtherTool | ShellTool)]).left_out


def _reject_renamed(body: Any) -> None:
    """Raises UnknownField for a parameter that has another name in this API."""
    if isinstance(body, dict):
        for name, meant in _RENAMED.items():
            if body.get(name) is not None and meant not in body:
                raise UnknownField(name, meant)
