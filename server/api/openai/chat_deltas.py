"""Parses a choice's text into chat deltas: reasoning, content and tool calls in OpenAI's shape."""

import uuid
from collections.abc import Mapping, Sequence, Set
from itertools import groupby
from typing import Any, NamedTuple

from engine.interface.types import FinishReason
from server.output_parsers.custom_input import CustomInputReader
from server.output_parsers.output_parser import OutputFormat, OutputParser
from server.output_parsers.reading.parser_events import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from server.text.detokenizer import HasTokenTexts

FINISH_REASON = "tool_calls"
FUNCTION_REASON = "function_call"  # in the older form of functions


def reasoning_fields(text: str) -> dict[str, str]:
    """Reasoning under both of its names: DeepSeek's and older vLLM's, and vLLM's newer one, which is OpenRouter's."""
    return {"reasoning_content": text, "reasoning": text}


NO_REASONING: Mapping[str, None] = {"reasoning_content": None, "reasoning": None}


class ChatDelta(NamedTuple):
    reasoning: str
    content: str
    tool_calls: list[dict[str, Any]]  # as in a chunk's delta
    is_of_functions: bool = False  # whether a call has the older form of functions on the wire

    @property
    def is_empty(self) -> bool:
        return not self.reasoning and not self.content and not self.tool_calls

    def to_dict(self) -> dict[str, Any]:
        """The fields of a chunk's delta that are not empty."""
        fields = {**reasoning_fields(self.reasoning), "content": self.content, **self.calls_fields}
        return {name: part for name, part in fields.items() if part}

    @property
    def calls_fields(self) -> dict[str, Any]:
        """The calls as a field of a delta or a message; empty where there are none."""
        if not self.tool_calls:
            return {}
        if self.is_of_functions:  # which has one call at most
            return {FUNCTION_REASON: self.tool_calls[0]["function"]}
        return {FINISH_REASON: self.tool_calls}


NO_DELTA = ChatDelta("", "", [])


class ChatDeltaParser:
    """Parses the text of one choice.

    Args:
        prompt: token ids; the last `num_begun` are the answer so far, and show whether reasoning has begun.
        with_reasoning: whether reasoning is returned, or dropped.
        custom_names: of the custom tools, whose calls have an input that is text.
        is_of_functions: whether calls have the older form, in which an answer has one at most.
    """

    def __init__(
        self, parts: OutputFormat, prompt: Sequence[int], tokenizer: HasTokenTexts, *, num_begun: int = 0,
        with_reasoning: bool = True, custom_names: Set[str] = frozenset(), is_of_functions: bool = False,
    ) -> None:  # fmt: skip
        self._is_of_functions = is_of_functions
        self._custom_names = custom_names
        self._input: CustomInputReader | None = None  # of the last call, if it is a custom tool's
        self._with_reasoning = with_reasoning
        self._parts = OutputParser(parts, prompt, tokenizer, num_begun=num_begun)
        self._num_calls = 0
        self._call_ids: set[str] = set()

    @property
    def num_reasoning_tokens(self) -> int:
        return self._parts.num_reasoning_tokens

    def feed(self, text: str, token_ids: Sequence[int], *, is_last: bool) -> list[ChatDelta]:
        """The deltas that have become certain with `text`, which has these tokens; with the last text, all of them.

        Each has reasoning, content or calls alone. There is always one, which may be empty.
        """
        events = self._parts.feed(text, token_ids, is_last=is_last)
        rows = [list(row) for _, row in groupby(events, _kind)] or [[]]
        return [self._delta(row, is_last=is_last and at == len(rows)) for at, row in enumerate(rows, start=1)]

    def _delta(self, events: Sequence[ParserEvent], *, is_last: bool) -> ChatDelta:
        content = "".join(event.text for event in events if isinstance(event, ContentDelta))
        reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
        calls = self._shape(events, is_last=is_last)
        return ChatDelta(reasoning if self._with_reasoning else "", content, calls, self._is_of_functions)

    def reason(self, reason: FinishReason | None) -> str | None:
        """The `finish_reason` of the choice: `tool_calls` for one that ends with calls, none of which is cut off."""
        return self.call_reason if self._parts.has_whole_calls and reason is FinishReason.STOP else reason

    @property
    def call_reason(self) -> str:
        """The `finish_reason` of a choice that ends with calls."""
        return FUNCTION_REASON if self._is_of_functions else FINISH_REASON

    def message(self, text: str, token_ids: Sequence[int]) -> dict[str, Any]:
        """The fields of a whole answer's message."""
        delta = self._delta(self._parts.feed(text, token_ids, is_last=True), is_last=True)
        message: dict[str, Any] = {"content": delta.content}
        if delta.tool_calls:
            calls = [{name: part for name, part in call.items() if name != "index"} for call in delta.tool_calls]
            message |= {"content": delta.content or None, **delta._replace(tool_calls=calls).calls_fields}
        if delta.reasoning:
            message |= reasoning_fields(delta.reasoning)
        return message

    def _shape(self, events: Sequence[ParserEvent], *, is_last: bool) -> list[dict[str, Any]]:
        shaped: list[dict[str, Any]] = []
        for event in events:
            match event:
                case ToolCallStart(name, call_id):
                    self._end_input(shaped)
                    if not call_id or call_id in self._call_ids:
                        call_id = new_call_id()
                    self._call_ids.add(call_id)
                    call = {"index": self._num_calls, "id": call_id}
                    if name in self._custom_names:
                        self._input = CustomInputReader()
                        shaped.append({**call, "type": "custom", "custom": {"name": name, "input": ""}})
                    else:
                        shaped.append({**call, "type": "function", "function": {"name": name, "arguments": ""}})
                    self._num_calls += 1
                case ToolCallArguments(text):
                    self._add(text if self._input is None else self._input.feed(text), shaped)
        if is_last:
            self._end_input(shaped)
        return shaped

    def _end_input(self, shaped: list[dict[str, Any]]) -> None:
        if self._input is not None:
            self._add(self._input.finish(), shaped)
            self._input = None

    def _add(self, text: str, shaped: list[dict[str, Any]]) -> None:
        """Adds to the arguments, or the input, of the last call."""
        if not text:
            return
        kind, field = ("function", "arguments") if self._input is None else ("custom", "input")
        index = self._num_calls - 1
        if not shaped or shaped[-1]["index"] != index:
            shaped.append({"index": index, kind: {field: ""}})
        shaped[-1][kind][field] += text


def _kind(event: ParserEvent) -> str:
    match event:
        case ContentDelta():
            return "content"
        case ReasoningDelta():
            return "reasoning"
    return "calls"


def new_call_id() -> str:
    """An id by which the tool's result will name the call."""
    return f"call_{uuid.uuid4().hex[:24]}"
