"""Tools as Anthropic's clients name them, and which of them the model is to call."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from server.api.anthropic.content_blocks import read_texts
from server.api.anthropic.message_conversion import (
    InputMessage,
    to_messages,
    to_plain_messages,
    without_changing_blocks,
)
from server.api.openai.chat_request import MAX_MESSAGES
from server.protocol.base_models import LenientModel, bounded
from server.protocol.errors import ApiError, shorten
from server.protocol.generation_fields import MAX_STOP_LENGTH, MAX_STOPS
from server.protocol.sampling_fields import as_strings
from server.protocol.stream_fields import StreamFields
from server.protocol.structured_outputs import GrammarRequest, StructuredOutputs
from server.protocol.tools import MAX_CALLS, ForcedCalls, FunctionDefinition, StrictCalls, Tool, as_schema

MAX_TOOLS = 512
TOOL_NAME_PATTERN = r"^[A-Za-z0-9_-]{1,128}$"


class ClientTool(LenientModel):
    """A tool by its name and the JSON schema of its input. Tools that Anthropic's own servers run have no schema."""

    name: Annotated[str, Field(pattern=TOOL_NAME_PATTERN)]
    description: str | None = None
    input_schema: Annotated[dict[str, Any], BeforeValidator(as_schema, json_schema_input_type=dict[str, Any])]

    strict: bool | None = None  # calls follow the schema always

    @model_validator(mode="before")
    @classmethod
    def _has_a_schema(cls, value: Any) -> Any:
        if isinstance(value, dict) and "input_schema" not in value and value.get("type") not in (None, "custom"):
            raise ValueError(
                f"tools has one of type {shorten(value['type'])}, which runs on Anthropic's servers; "
                "this server takes tools with an input_schema"
            )
        return value

    def to_tool(self) -> Tool:
        """The tool as chat requests name it; names may be longer here."""
        function = FunctionDefinition.model_construct(
            name=self.name, description=self.description, parameters=self.input_schema, strict=self.strict
        )
        return Tool.model_construct(type="function", function=function)


class ToolChoice(LenientModel):
    """Which tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_a_tool(self) -> ToolChoice:
        if self.type == "tool" and self.name is None:
            raise ValueError("tool_choice has the type tool and no name; it must name one of the tools")
        return self

    def strict_calls(self, tools: list[Tool]) -> StrictCalls | None:
        """What the calls that the model may choose to make must follow; None where that may be anything.

        Args:
            tools: of the request.
        """
        if self.type != "auto":
            return None
        return StrictCalls.of([tool.function for tool in tools], is_parallel=not self.disable_parallel_tool_use)

    def forced_calls(self, tools: list[Tool]) -> ForcedCalls | None:
        """The calls that the answer must consist of; None where it may be anything.

        Args:
            tools: of the request; the one that is named is among them.
        """
        functions = [tool.function for tool in tools]
        match self.type:
            case "tool":
                return ForcedCalls([function for function in functions if function.name == self.name], 1)
            case "any":
                return ForcedCalls(functions, 1 if self.disable_parallel_tool_use else MAX_CALLS)
        return None


def _as_system(value: Any) -> list[str]:
    return without_changing_blocks(read_texts(value, "system"))


def _as_stops(value: Any) -> Any:
    return [] if value is None else as_strings(value, "stop_sequences", most=MAX_STOPS, longest=MAX_STOP_LENGTH)


class ThinkingConfig(LenientModel):
    """Whether the model is to reason before it answers."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(LenientModel):
    """A JSON schema that the answer follows."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]  # pydantic has a `schema` of its own


class OutputConfig(LenientModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class CountTokensRequest(LenientModel):
    """A conversation whose tokens are counted."""

    model: str | None = None
    messages: Annotated[list[InputMessage], Field(min_length=1, fail_fast=True), bounded("messages", MAX_MESSAGES)]
    system: Annotated[list[str], PlainValidator(_as_system)] = Field(default_factory=list)
    tools: Annotated[list[ClientTool], Field(fail_fast=True), bounded("tools", MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None

    @classmethod
    def parse(cls, body: Any) -> Self:
        """Checks a decoded JSON body.

        Raises:
            ApiError, ValidationError: it is not a valid request.
        """
        return cls.model_validate(body)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names that are told to be ignored: none, because clients expect them to be passed over here."""
        return ()

    @model_validator(mode="after")
    def _choice_is_among_the_tools(self) -> Self:
        named, choice = [tool.name for tool in self.tools or ()], self.tool_choice
        if len(set(named)) < len(named):
            raise ValueError("tools has two of the same name; each name must stand there once")
        if choice is None:
            return self
        if choice.type == "tool" and choice.name not in named:
            raise ApiError(
                f"tool_choice.name is {shorten(choice.name)}, which is not among the tools",
                param="tool_choice.name",
                code="invalid_value",
            )
        if choice.type == "any" and not named:
            raise ApiError("tool_choice is any and tools is empty", param="tool_choice", code="invalid_value")
        return self

    @property
    def continues(self) -> bool:
        """Whether the answer goes on with the last turn, which is the model's own."""
        return self.messages[-1].role == "assistant"

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The messages as chat templates know them."""
        return to_messages(self.system, self.messages)

    @property
    def plain_conversation(self) -> list[dict[str, Any]]:
        """The messages for templates that know no more than users and assistants by turns."""
        return to_plain_messages(self.system, self.messages)

    @cached_property
    def offered_tools(self) -> list[Tool]:
        """What the model is told of."""
        return [tool.to_tool() for tool in self.tools or ()]

    @property
    def wants_thinking(self) -> bool:
        """Whether reasoning is to be told."""
        return self.thinking is not None and self.thinking.type != "disabled"

    @property
    def template_variables(self) -> dict[str, Any]:
        """What the chat template is told beside messages and tools; models reason only where it is asked for."""
        effort = None if self.output_config is None else self.output_config.effort
        switches: dict[str, Any] = {"enable_thinking": self.wants_thinking, "thinking": self.wants_thinking}
        return switches | ({} if effort is None else {"reasoning_effort": effort})


class MessagesRequest(CountTokensRequest, StreamFields):
    """Anthropic's request for the next message of a conversation."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[list[str], BeforeValidator(_as_stops)] = Field(default_factory=list)
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    @model_validator(mode="after")
    def _one_grammar_at_most(self) -> Self:
        if self.forced_calls is not None and self.output_config is not None and self.output_config.format is not None:
            raise ApiError(
                "tool_choice asks for a call, and output_config.format for another form of the answer; "
                "give one of them",
                param="tool_choice",
                code="invalid_value",
            )
        return self

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampler's parameters that the request gives."""
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def forced_calls(self) -> ForcedCalls | None:
        """The calls that the answer must consist of; None where it may be anything."""
        return None if self.tool_choice is None else self.tool_choice.forced_calls(self.offered_tools)

    @property
    def strict_calls(self) -> StrictCalls | None:
        """What the calls that the model may choose to make must follow; None where that may be anything."""
        return (self.tool_choice or ToolChoice(type="auto")).strict_calls(self.offered_tools)

    @property
    def thinking_budget(self) -> int | None:
        """Tokens of the reasoning, at most; None where the request does not say."""
        return self.thinking.budget_tokens if self.thinking is not None and self.wants_thinking else None

    @property
    def may_call(self) -> bool:
        """Whether calls are looked for in the answer."""
        return bool(self.tools) and (self.tool_choice is None or self.tool_choice.type != "none")

    @property
    def grammar_request(self) -> GrammarRequest | None:
        """What the answer must match; None where the request names nothing."""
        forced = self.forced_calls
        if forced is not None:
            return GrammarRequest("tools", forced)
        form = None if self.output_config is None else self.output_config.format
        if form is None:
            return None
        return GrammarRequest("output_config.format", StructuredOutputs.model_validate({"json": form.schema_}))
