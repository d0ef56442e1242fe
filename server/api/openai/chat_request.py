"""The request body of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import cached_property
from itertools import compress
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, model_validator

from sampling.host.params import MAX_LOGPROBS
from server.api.openai.media_parts import ImagePart, VideoPart, VideoUrlPart, as_known_part, reader_of
from server.generation.roles import RESULTS, Role, template_role
from server.media.picture import Content, as_content, text_of, within
from server.protocol.base_models import MAX_NAME_CHARS, StrictModel, UnknownFields, bounded
from server.protocol.chat_tools import ChatTools, FlatCustomTool, OfferedTool, left_out, offered
from server.protocol.custom_tools import CustomTool
from server.protocol.errors import invalid_value, shorten
from server.protocol.foreign_parameters import CHAT, MESSAGE
from server.protocol.generation_fields import Effort, GenerationFields, TemplateFields, ThinkingBudget, effort_variables
from server.protocol.json_limits import ARGUMENTS, refuse_too_many_values
from server.protocol.structured_outputs import GrammarRequest
from server.protocol.tool_choice import (
    AllowedTools,
    FunctionName,
    NamedCustomTool,
    NamedTool,
    ToolChoice,
    with_parallel,
)
from server.protocol.tools import MAX_TOOLS, CallsTools, FunctionCall, FunctionDefinition, Tool, ToolCall, ToolPolicy

MAX_MESSAGES = 4096
MAX_PARTS = 1024  # of one message's content
_TEXT_KINDS = ("text", "input_text", "output_text")
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")


def _as_logprobs_switch(value: Any) -> Any:
    """Rejects a number, which is what the completions route takes, but for 0 and 1, as vLLM has it."""
    if type(value) is int and value in (0, 1):
        return bool(value)
    if not isinstance(value, bool):
        raise ValueError(
            f"logprobs is {shorten(value)}; it must be true or false, and top_logprobs is the number of alternatives"
        )
    return value


def as_text(value: Any, text_of_part: Callable[[Any], str]) -> str:
    """As one text, a string or a list of text parts, joined by line ends; raises ValueError for anything else."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"content is {shorten(value)}; it must be a string or a list of text parts")
    if len(value) > MAX_PARTS:
        raise ValueError(f"content has {len(value)} entries; at most {MAX_PARTS} are allowed")
    return "\n".join(map(text_of_part, value))


def _text_of_part(part: Any) -> str:
    """The text of a part, which may have one of the names that texts have in Responses; a refusal is text, too."""
    kind = part.get("type", "text") if isinstance(part, dict) else "text"
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind not in _TEXT_KINDS:
        raise ValueError(
            f"content has a part of type {shorten(kind)}; only text, image_url, video_url, video and files of text are "
            "supported"
        )
    if not isinstance(part, dict) or "type" not in part or not isinstance(part.get("text"), str):
        raise ValueError(f'content has the part {shorten(part)}; it must look like {{"type":"text","text":"…"}}')
    return str(part["text"])


def _as_content(value: Any) -> Content:
    """As content, a string or a list of parts, of which some may be pictures or videos; raises as `as_text`."""
    if isinstance(value, dict):
        value = [value]  # some clients send the only part without its list
    if not isinstance(value, list) or len(value) > MAX_PARTS:
        return as_text(value, _text_of_part)
    value = [as_known_part(part) for part in value]
    if not any(map(reader_of, value)):
        return as_text(value, _text_of_part)
    return as_content(
        [
            _text_of_part(part) if read is None else read(part, f"content[{place}]")
            for place, part in enumerate(value)
            for read in (reader_of(part),)
        ]
    )


def _without_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    """An assistant's message whose parts with reasoning, as Mistral's and Anthropic's APIs have them, are a field."""
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    is_thought = [isinstance(part, dict) and part.get("type") in _THOUGHTS for part in parts]
    if not any(is_thought):
        return message
    texts: list[str] = []
    for part in compress(parts, is_thought):
        thought = part.get("thinking") or part.get("text") or ""
        pieces = thought if isinstance(thought, list) else [{"text": thought}]
        texts += [piece["text"] for piece in pieces if isinstance(piece, dict) and isinstance(piece.get("text"), str)]
    return {
        "reasoning_content": "\n".join(texts),
        **{name: value for name, value in message.items() if value is not None},
        "content": [part for part, of_thought in zip(parts, is_thought, strict=True) if not of_thought],
    }


class TextPart(StrictModel):
    """A text part of a message's content."""

    type: Literal["text"]
    text: str


AnyPart = TextPart | ImagePart | VideoUrlPart | VideoPart


class Message(StrictModel):
    """One message of a conversation, which may be an answer as a client's library hands it on."""

    role: Role
    content: Annotated[
        str | list[dict[str, Any]],
        BeforeValidator(_as_content, json_schema_input_type=str | list[AnyPart]),
    ]
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True), bounded("tool_calls", MAX_TOOLS)] | None = None
    function_call: FunctionCall | None = None  # an answer's only call, where its request had `functions`
    reasoning_content: str | None = None
    reasoning: str | None = None  # its newer name in vLLM
    annotations: Any = None  # an answer's citations; not part of the prompt

    @model_validator(mode="before")
    @classmethod
    def _no_more_names_than_fields(cls, value: Any, info: ValidationInfo) -> Any:  # overrides StrictModel's
        """Drops unknown fields, and takes an answer without text for an empty one, or its refusal for its text."""
        if isinstance(value, dict) and value.get("role") == "assistant" and isinstance(value.get("refusal"), str):
            value = {**value, "refusal": None, "content": value.get("content") or value["refusal"]}
        if not isinstance(value, dict) or not value.keys() <= cls.model_fields.keys():
            unknown = info.context if isinstance(info.context, UnknownFields) else UnknownFields()
            value = unknown.drop_from(value, cls.model_fields, MESSAGE, "messages[].")
        if isinstance(value, dict) and value.get("role") in RESULTS and value.get("content", "") is None:
            return {**value, "content": ""}
        if isinstance(value, dict) and value.get("role") == "assistant":
            value = _without_thoughts(value)
            has_calls = bool(
                value.get("tool_calls") or value.get("function_call")
            )  # some libraries then leave the content out
            if value.get("content", None if has_calls else "") is None:
                return {**value, "content": ""}
        return value

    def to_template(self, path: str) -> dict[str, Any]:
        """The message in the form that chat templates expect, with the role by the name that they know.

        Args:
            path: of the message in the body, which errors name.
        """
        content = within(self.content, path)
        message: dict[str, Any] = {"role": template_role(self.role), "content": content}
        reasoning = self.reasoning if self.reasoning_content is None else self.reasoning_content
        known = {"name": self.name, "tool_call_id": self.tool_call_id, "reasoning_content": reasoning}
        message |= {name: value for name, value in known.items() if value is not None}
        if self.calls:
            message["tool_calls"] = [call.to_template() for call in self.calls]
        return message

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The calls of an answer, in either form."""
        if self.tool_calls or self.function_call is None:
            return self.tool_calls or ()
        return [ToolCall(function=self.function_call)]


def as_template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages in the form that chat templates expect. This may take long where they have many calls of tools.

    Raises ApiError where the arguments of all calls have more values than one body may have: they are texts in it.
    """
    calls = [call for message in messages for call in message.calls]
    refuse_too_many_values([call.function.arguments for call in calls], ARGUMENTS)
    return [message.to_template(f"messages[{at}]") for at, message in enumerate(messages)]


def _as_function_call(value: Any) -> Any:
    if isinstance(value, dict):
        value = {"name": value["name"]} if "name" in value else value
    elif value not in ("none", "auto"):
        raise invalid_value(
            f'function_call is {shorten(value)}; it must be "none", "auto", or an object with the name of a function',
            "function_call",
        )
    return value


def _tag_of(choice: Any) -> str:
    return "<word>" if isinstance(choice, str) else "<function>"


# The tags of a union's members have angle brackets, which keep them out of the paths in errors.
FunctionChoice = Annotated[
    Annotated[Literal["none", "auto"], Tag("<word>")] | Annotated[FunctionName, Tag("<function>")],
    Discriminator(_tag_of),
    BeforeValidator(_as_function_call, json_schema_input_type=Literal["none", "auto"] | FunctionName),
]


_AnyChoice: TypeAlias = Literal["none", "auto", "required"] | NamedTool | NamedCustomTool | AllowedTools | FunctionName


class ChatCompletionRequest(GenerationFields, TemplateFields, CallsTools):
    """OpenAI's chat completion request."""

    UNSUPPORTED = CHAT

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True), bounded("messages", MAX_MESSAGES)]
    max_completion_tokens: int | None = None  # the newer name of max_tokens, which it overrides
    tools: ChatTools | None = None
    tool_choice: ToolChoice | None = None  # "auto" where there are tools
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionDefinition], Field(fail_fast=True), bounded("functions", MAX_TOOLS)] | None = (
        None  # the older form of tools, in which an answer has one call at most
    )
    function_call: FunctionChoice | None = None  # "auto" where there are functions
    echo: bool | None = None  # vLLM's: an answer begins with the message that it goes on with
    include_reasoning: bool | None = None  # true by default
    thinking_token_budget: ThinkingBudget | None = None  # of the reasoning of each answer
    reasoning_effort: Effort | None = None
    parse_special: bool | None = None  # whether names of control tokens in messages become those tokens
    logprobs: Annotated[bool, BeforeValidator(_as_logprobs_switch, json_schema_input_type=bool)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    verbose: bool | None = None  # llama.cpp's

    @model_validator(mode="before")
    @classmethod
    def _one_call_as_anthropic_says_it(cls, value: Any) -> Any:
        return with_parallel(value)

    @model_validator(mode="after")
    def _choice_is_among_the_tools(self, info: ValidationInfo) -> ChatCompletionRequest:
        if not self.tools and not self.functions and self.tool_choice is None and self.function_call is None:
            return self  # nearly every chat
        if self.functions and self.tools:
            raise invalid_value("tools and functions are both given; functions are their older form", "functions")
        kinds = left_out(self.tools)
        if isinstance(info.context, UnknownFields):
            for kind in kinds:
                info.context.add(f"tools[].{kind[:MAX_NAME_CHARS]}")
            if self._ignores_choice:
                info.context.add("tool_choice")
        choice = None if self._ignores_choice else self._choice
        chosen: list[str] = []
        if isinstance(choice, NamedTool | NamedCustomTool):
            chosen = [choice.function.name]
        elif isinstance(choice, AllowedTools):
            chosen = [name for name in choice.names if name not in kinds]  # those are left out
        elif isinstance(choice, FunctionName):
            chosen = [choice.name]
        self.check_tools(
            [tool.function.name for tool in self.offered_tools],
            chosen,
            *(("functions", "function_call") if self.is_of_functions else ()),
        )
        return self

    @cached_property
    def offered_tools(self) -> Sequence[OfferedTool]:
        """The tools that the model may call here; functions of the older form are some, too."""
        if self.functions:
            return [Tool.model_construct(type="function", function=function) for function in self.functions]
        return offered(self.tools)

    @property
    def is_of_functions(self) -> bool:
        """Whether the request, and so its answer, has the older form."""
        return bool(self.functions) or (self.function_call is not None and not self.tools)

    @property
    def _choice(self) -> _AnyChoice | None:
        own, other = self.tool_choice, self.function_call
        if self.is_of_functions:
            return own if other is None else other
        return other if own is None else own

    @property
    def _ignores_choice(self) -> bool:
        """Whether `tool_choice` means nothing but tools that were left out."""
        kinds, choice = left_out(self.tools), self.tool_choice
        if not kinds:
            return False
        if isinstance(choice, NamedTool | NamedCustomTool):
            means: Set[str] = {choice.function.name}
        elif isinstance(choice, AllowedTools):
            means = choice.names
        else:
            return choice == "required" and not self.offered_tools
        return means <= set(kinds) and means.isdisjoint(tool.function.name for tool in self.offered_tools)

    @cached_property
    def tool_policy(self) -> ToolPolicy:
        tools, choice = [tool.function for tool in self.offered_tools], self._choice
        is_parallel = self.parallel_tool_calls is not False and not self.is_of_functions
        if self._ignores_choice:
            return ToolPolicy([] if isinstance(choice, AllowedTools) else tools, "auto", is_parallel)
        if isinstance(choice, AllowedTools):
            allowed, mode = [tool for tool in tools if tool.name in choice.names], choice.allowed_tools.mode
            return ToolPolicy(allowed, mode, is_parallel)
        if isinstance(choice, NamedTool | NamedCustomTool):
            choice = choice.function
        if isinstance(choice, FunctionName):
            return ToolPolicy([tool for tool in tools if tool.name == choice.name], "required", False)
        return ToolPolicy(tools, choice or "auto", is_parallel)

    @property
    def prompt_tools(self) -> list[dict[str, Any]]:
        """The tools in the prompt, in the form that chat templates expect; none where none may be called."""
        choice = self._choice
        if choice == "none":
            return []
        names = choice.names if isinstance(choice, AllowedTools) else None
        return [tool.to_template() for tool in self.offered_tools if names is None or tool.function.name in names]

    @property
    def custom_names(self) -> frozenset[str]:
        """The names of the custom tools."""
        return frozenset(
            tool.function.name for tool in self.offered_tools if isinstance(tool, CustomTool | FlatCustomTool)
        )

    @property
    def echoed(self) -> str:
        """The text that an answer begins with: that of the last message, if `echo` is wanted and it goes on with it."""
        last = self.messages[-1]
        is_own = last.role == "assistant" or self.continue_final_message is True
        return text_of(last.content) if self.echo and is_own else ""

    @property
    def has_template_variables(self) -> bool:
        return bool(self.reasoning_effort or self.chat_template_kwargs or self.documents)

    @property
    def template_variables(self) -> dict[str, Any]:
        return {**effort_variables(self.reasoning_effort), **super().template_variables}

    @property
    def grammar_request(self) -> GrammarRequest | None:
        forced = None if self._choice is None else self.forced_calls
        return super().grammar_request if forced is None else GrammarRequest("tools", forced)

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise invalid_value(
                f"top_logprobs is {self.top_logprobs} and logprobs is not true; it is only allowed with logprobs",
                "top_logprobs",
            )
        return self

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
