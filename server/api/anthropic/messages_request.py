"""The request bodies of POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, PrivateAttr, ValidationError, model_validator

from server.api.anthropic.content_blocks import ToolChange, read_texts
from server.api.anthropic.message_conversion import (
    InputMessage,
    to_messages,
    to_plain_messages,
    without_changing_blocks,
)
from server.api.anthropic.offered_tools import AnyTools, ClientTool, ServerTool, ToolChoice
from server.api.openai.chat_request import MAX_MESSAGES
from server.protocol.base_models import MAX_NAME_CHARS, LenientModel, UnknownFields, bounded, with_integers
from server.protocol.errors import invalid_value, shorten
from server.protocol.generation_fields import MAX_STOP_LENGTH, MAX_STOPS, Effort, StreamFields
from server.protocol.sampling_fields import as_strings
from server.protocol.structured_outputs import GrammarRequest, StructuredOutputs
from server.protocol.tools import CallsTools, Tool, ToolPolicy


def _as_system(value: Any) -> list[str]:
    return without_changing_blocks(read_texts(value, "system"))


def _as_stops(value: Any) -> Any:
    return [] if value is None else as_strings(value, "stop_sequences", most=MAX_STOPS, longest=MAX_STOP_LENGTH)


class ThinkingConfig(LenientModel):
    """Whether the model reasons before it answers."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: str | None = None  # "omitted" leaves its text out


class JsonFormat(LenientModel):
    """A JSON schema that the answer follows."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]  # pydantic has a `schema` of its own


class OutputConfig(LenientModel):
    effort: Effort | None = None
    format: JsonFormat | None = None


class CountTokensRequest(LenientModel):
    """A conversation whose tokens are counted."""

    model: str | None = None
    messages: Annotated[list[InputMessage], Field(min_length=1, fail_fast=True), bounded("messages", MAX_MESSAGES)]
    system: Annotated[list[str], PlainValidator(_as_system)] = Field(default_factory=list)
    tools: AnyTools | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    _ignored: tuple[str, ...] = PrivateAttr(default=())

    @classmethod
    def parse(cls, body: Any) -> Self:
        """Validates a decoded JSON body. Raises ApiError or ValidationError if it is not a valid request."""
        unknown = UnknownFields()
        request = cls.model_validate(with_integers(body, cls), context=unknown)
        for tool in request.tools or ():
            if isinstance(tool, ServerTool):
                unknown.add(f"tools[].{tool.type[:MAX_NAME_CHARS]}")
        if request.ignores_choice:
            unknown.add("tool_choice")
        request._ignored = tuple(unknown.ignored)
        return request

    @property
    def ignored(self) -> tuple[str, ...]:
        """Tools and blocks that are left out. Unknown parameters are not among them: clients send new ones often."""
        return self._ignored

    @model_validator(mode="after")
    def _choice_is_among_the_tools(self) -> Self:
        named, choice = [tool.name for tool in self.tools or () if tool.name is not None], self.tool_choice
        if len(set(named)) < len(named):
            raise ValueError("tools has two of the same name; each name must stand there once")
        offered = self.offered_tools
        if choice is None or self.ignores_choice:
            return self
        if choice.type == "tool" and choice.name not in [tool.function.name for tool in offered]:
            raise invalid_value(
                f"tool_choice.name is {shorten(choice.name)}, which is not among the tools", "tool_choice.name"
            )
        if choice.type == "any" and not offered:
            raise invalid_value("tool_choice is any and tools is empty", "tool_choice")
        return self

    @property
    def ignores_choice(self) -> bool:
        """Whether `tool_choice` means tools that are not part of the prompt."""
        choice, left_out = self.tool_choice, [tool for tool in self.tools or () if isinstance(tool, ServerTool)]
        if choice is None or not left_out:
            return False
        if choice.type == "tool":
            return any(choice.name in (tool.name, tool.type) for tool in left_out)
        return choice.type == "any" and not self.offered_tools

    @property
    def continues(self) -> bool:
        """Whether the answer continues the last message, which is the model's own."""
        return self.messages[-1].role == "assistant"

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The messages in the form that chat templates expect."""
        return to_messages(self.system, self._turns)

    @property
    def plain_conversation(self) -> list[dict[str, Any]]:
        """The messages for templates that only know alternating users and assistants."""
        return to_plain_messages(self.system, self._turns)

    @property
    def _turns(self) -> list[InputMessage]:
        return [message.at(f"messages[{at}]") for at, message in enumerate(self.messages)]

    @cached_property
    def offered_tools(self) -> list[Tool]:
        """The tools in the prompt: those of the request, as messages have changed them.

        Raises ValueError if a message adds a tool that is none.
        """
        known = {tool.name: tool for tool in self.tools or () if isinstance(tool, ClientTool)}
        offered = dict(known)
        for change in (block for turn in self.messages for block in turn.content if isinstance(block, ToolChange)):
            if change.is_removed:
                offered.pop(change.name, None)
            elif change.definition is not None:
                try:
                    offered[change.name] = ClientTool.model_validate(change.definition)
                except ValidationError as error:
                    raise ValueError(f"messages add the tool {shorten(change.name)}, which is invalid") from error
            elif change.name in known:
                offered[change.name] = known[change.name]
        return [tool.to_tool() for tool in offered.values()]

    @property
    def may_not_call(self) -> bool:
        """Whether no tool may be called, so that the prompt says nothing of them."""
        return self.tool_choice is not None and self.tool_choice.type == "none"

    @property
    def wants_thinking(self) -> bool:
        """Whether reasoning is returned."""
        return self.thinking is not None and self.thinking.type != "disabled"

    @property
    def template_variables(self) -> dict[str, Any]:
        """The template's variables; models reason only where the request asks for it."""
        effort = None if self.output_config is None else self.output_config.effort
        switches: dict[str, Any] = {"enable_thinking": self.wants_thinking, "thinking": self.wants_thinking}
        return switches | ({} if effort is None else {"reasoning_effort": effort})


class MessagesRequest(CountTokensRequest, StreamFields, CallsTools):
    """Anthropic's request for the next message of a conversation."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[list[str], BeforeValidator(_as_stops)] = Field(default_factory=list)
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling parameters that the request gives."""
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return {name: value for name, value in given.items() if value is not None}

    @cached_property
    def tool_policy(self) -> ToolPolicy:
        functions, choice = [tool.function for tool in self.offered_tools], self.tool_choice
        if choice is None or self.ignores_choice:
            return ToolPolicy(functions)
        if choice.type == "tool":
            return ToolPolicy([function for function in functions if function.name == choice.name], "required", False)
        is_parallel = not choice.disable_parallel_tool_use
        return ToolPolicy(functions, "required" if choice.type == "any" else choice.type, is_parallel)

    @property
    def thinking_budget(self) -> int | None:
        """The most tokens of the reasoning; None where the request does not say."""
        return self.thinking.budget_tokens if self.thinking is not None and self.wants_thinking else None

    @property
    def grammar_request(self) -> GrammarRequest | None:
        """The grammar of the answer; None where the request has none."""
        forced = self.forced_calls
        if forced is not None:
            return GrammarRequest("tools", forced)
        form = None if self.output_config is None else self.output_config.format
        if form is None:
            return None
        return GrammarRequest("output_config.format", StructuredOutputs.model_validate({"json": form.schema_}))
