"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from sampling.host.params import MAX_LOGPROBS
from server.protocol.errors import ApiError, shorten
from server.protocol.generation_fields import GenerationFields, ThinkingBudget
from server.protocol.strict_model import StrictModel, bounded
from server.protocol.structured_outputs import GrammarWish, ResponseFormat
from server.protocol.template_fields import TemplateFields
from server.protocol.tools import MAX_CALLS, MAX_TOOLS, ForcedCalls, NamedTool, StrictCalls, Tool, ToolCall, ToolChoice
from server.protocol.unknown_fields import CHAT, MESSAGE, UnknownFields

MAX_MESSAGES = 4096
_ANY_TEXT = GrammarWish("response_format", ResponseFormat(type="text"))
MAX_PARTS = 1024  # of one message's content


def _as_logprobs_switch(value: Any) -> Any:
    """Refuses a number, which is what the completions route takes."""
    if not isinstance(value, bool):
        raise ValueError(
            f"logprobs is {shorten(value)}; it must be true or false, and top_logprobs is the number of alternatives"
        )
    return value


def _as_text(value: Any) -> str:
    """A message's content, which is a string or a list of text parts; parts are joined by line ends."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"content is {shorten(value)}; it must be a string or a list of text parts")
    if len(value) > MAX_PARTS:
        raise ValueError(f"content has {len(value)} entries; at most {MAX_PARTS} are allowed")
    texts = []
    for part in value:
        if not isinstance(part, dict) or "type" not in part:
            raise ValueError(f'content has the part {shorten(part)}; it must look like {{"type":"text","text":"…"}}')
        if part["type"] != "text":
            raise ValueError(
                f"content has a part of type {shorten(part['type'])}; only text is supported by this server"
            )
        if not isinstance(part.get("text"), str):
            raise ValueError(f'content has the part {shorten(part)}; it must look like {{"type":"text","text":"…"}}')
        texts.append(part["text"])
    return "\n".join(texts)


class TextPart(StrictModel):
    """A piece of a message's text, as documents show it; `_as_text` reads it."""

    type: Literal["text"]
    text: str


class Message(StrictModel):
    """One message of a conversation, which may be an answer as a client's library hands it on."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_as_text, json_schema_input_type=str | list[TextPart])]
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True), bounded("tool_calls", MAX_TOOLS)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # its newer name in vLLM
    annotations: Any = None  # where an answer's citations come from; nothing that the model is told

    @model_validator(mode="before")
    @classmethod
    def _no_more_names_than_fields(cls, value: Any, info: ValidationInfo) -> Any:  # in the place of StrictModel's check
        """Leaves out what the template cannot be told, and takes an answer without text for an empty one."""
        if not isinstance(value, dict) or not value.keys() <= cls.model_fields.keys():
            strangers = info.context if isinstance(info.context, UnknownFields) else UnknownFields()
            value = strangers.sort_out(value, cls.model_fields, MESSAGE, "messages[].")
        if isinstance(value, dict) and value.get("role") == "assistant":
            has_calls = bool(value.get("tool_calls"))  # some libraries then leave the content out
            if value.get("content", None if has_calls else "") is None:
                return {**value, "content": ""}
        return value

    def to_template(self) -> dict[str, Any]:
        """The message as chat templates know it: `developer` is the newer name of `system`."""
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.content}
        reasoning = self.reasoning if self.reasoning_content is None else self.reasoning_content
        known = {"name": self.name, "tool_call_id": self.tool_call_id, "reasoning_content": reasoning}
        message |= {name: value for name, value in known.items() if value is not None}
        if self.tool_calls:
            message["tool_calls"] = [call.to_template() for call in self.tool_calls]
        return message


class ChatCompletionRequest(GenerationFields, TemplateFields):
    """OpenAI's chat completion request."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True), bounded("messages", MAX_MESSAGES)]
    max_completion_tokens: int | None = None  # the newer name of max_tokens, which it overrides
    tools: Annotated[list[Tool], Field(fail_fast=True), bounded("tools", MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None  # "auto" where there are tools
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None  # true by default
    thinking_token_budget: ThinkingBudget | None = None  # of the reasoning of each answer
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    parse_special: bool | None = None  # whether names of control tokens in messages become those tokens
    logprobs: Annotated[bool, BeforeValidator(_as_logprobs_switch, json_schema_input_type=bool)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @classmethod
    def parse(cls, body: Any) -> ChatCompletionRequest:
        """Checks a decoded JSON body.

        Raises:
            ApiError, FieldError, ValidationError: it is not a valid request.
        """
        return cls.without_strangers(body, CHAT)

    @model_validator(mode="after")
    def _choice_is_among_the_tools(self) -> ChatCompletionRequest:
        named = [tool.function.name for tool in self.tools or ()]
        choice = self.tool_choice
        if len(set(named)) < len(named):
            raise ValueError("tools has two functions of the same name; each name must stand there once")
        if isinstance(choice, NamedTool) and choice.function.name not in named:
            raise ApiError(
                f"tool_choice names the function {shorten(choice.function.name)}, which is not among the tools",
                param="tool_choice",
                code="invalid_value",
            )
        if choice == "required" and not named:
            raise ApiError("tool_choice is required and tools is empty", param="tool_choice", code="invalid_value")
        if self.forced_calls is not None and super().grammar_wish not in (None, _ANY_TEXT):
            raise ApiError(
                "tool_choice asks for a call, and another parameter for another form of the answer; give one of them",
                param="tool_choice",
                code="invalid_value",
            )
        return self

    @property
    def forced_calls(self) -> ForcedCalls | None:
        """The calls that the answer must consist of; None where it may be anything."""
        tools, choice = [tool.function for tool in self.tools or ()], self.tool_choice
        if isinstance(choice, NamedTool):
            return ForcedCalls([tool for tool in tools if tool.name == choice.function.name], 1)
        if choice != "required":
            return None
        return ForcedCalls(tools, 1 if self.parallel_tool_calls is False else MAX_CALLS)

    @property
    def strict_calls(self) -> StrictCalls | None:
        """What the calls that the model may choose to make must follow; None where that may be anything."""
        if self.tool_choice not in (None, "auto"):
            return None
        return StrictCalls.of(
            [tool.function for tool in self.tools or ()], is_parallel=self.parallel_tool_calls is not False
        )

    @property
    def may_call(self) -> bool:
        """Whether calls are looked for in the answer."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def has_template_variables(self) -> bool:
        return bool(self.reasoning_effort or self.chat_template_kwargs or self.documents)

    @property
    def template_variables(self) -> dict[str, Any]:
        """What the chat template is told beside messages and tools. No effort has other names in some templates."""
        effort = self.reasoning_effort
        switches = {"enable_thinking": False, "thinking": False} if effort == "none" else {}
        of_effort = {} if effort is None else {"reasoning_effort": effort, **switches}
        return {**of_effort, **super().template_variables}

    @property
    def grammar_wish(self) -> GrammarWish | None:
        forced = self.forced_calls
        return super().grammar_wish if forced is None else GrammarWish("tools", forced)

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(
                f"top_logprobs is {self.top_logprobs} and logprobs is not true; it is only allowed with logprobs",
                param="top_logprobs",
                code="invalid_value",
            )
        return self

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
