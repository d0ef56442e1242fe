"""Parses a choice's text into chat deltas: reasoning, content and tool calls in OpenAI's shape."""

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from engine.interface.types import FinishReason
from server.output_parsers.output_parser import OutputFormat, OutputParser
from server.output_parsers.parser_events import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from server.text.detokenizer import HasTokenTexts

FINISH_REASON = "tool_calls"


class ChatDelta(NamedTuple):
    reasoning: str
    content: str
    tool_calls: list[dict[str, Any]]  # as in a chunk's delta

    @property
    def is_empty(self) -> bool:
        return not self.reasoning and not self.content and not self.tool_calls

    def to_dict(self) -> dict[str, Any]:
        """The fields of a chunk's delta that are not empty."""
        fields = {"reasoning_content": self.reasoning, "content": self.content, "tool_calls": self.tool_calls}
        return {name: part for name, part in fields.items() if part}


NO_DELTA = ChatDelta("", "", [])


class ChatDeltaParser:
    """Parses the text of one choice.

    Args:
        prompt: token ids; the last `num_begun` are the answer so far, and show whether reasoning has begun.
        with_reasoning: whether reasoning is returned, or dropped.
    """

    def __init__(
        self, parts: OutputFormat, prompt: Sequence[int], tokenizer: HasTokenTexts, *, num_begun: int = 0,
        with_reasoning: bool = True,
    ) -> None:  # fmt: skip
        self._with_reasoning = with_reasoning
        self._parts = OutputParser(parts, prompt, tokenizer, num_begun=num_begun)
        self._num_calls = 0

    @property
    def num_reasoning_tokens(self) -> int:
        return self._parts.num_reasoning_tokens

    def feed(self, text: str, token_ids: Sequence[int], *, is_last: bool) -> ChatDelta:
        """The delta that has become certain with `text`, which has these tokens; with the last text, all of it."""
        events = self._parts.feed(text, token_ids, is_last=is_last)
        content = "".join(event.text for event in events if isinstance(event, ContentDelta))
        reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
        return ChatDelta(reasoning if self._with_reasoning else "", content, self._shape(events))

    def reason(self, reason: FinishReason | None) -> str | None:
        """The `finish_reason` of the choice: that of an answer with calls has a name of its own."""
        return FINISH_REASON if self._parts.num_calls and reason is FinishReason.STOP else reason

    def message(self, text: str, token_ids: Sequence[int]) -> dict[str, Any]:
        """The fields of a whole answer's message."""
        delta = self.feed(text, token_ids, is_last=True)
        message: dict[str, Any] = {"content": delta.content}
        if delta.tool_calls:
            message["content"] = delta.content or None
            message["tool_calls"] = [
                {name: part for name, part in call.items() if name != "index"} for call in delta.tool_calls
            ]
        if delta.reasoning:
            message["reasoning_content"] = delta.reasoning
        return message

    def _shape(self, events: Sequence[ParserEvent]) -> list[dict[str, Any]]:
        shaped: list[dict[str, Any]] = []
        for event in events:
            match event:
                case ToolCallStart(name):
                    function = {"name": name, "arguments": ""}
                    shaped.append(
                        {"index": self._num_calls, "id": new_call_id(), "type": "function", "function": function}
                    )
                    self._num_calls += 1
                case ToolCallArguments(text):
                    index = self._num_calls - 1
                    if not shaped or shaped[-1]["index"] != index:
                        shaped.append({"index": index, "function": {"arguments": ""}})
                    shaped[-1]["function"]["arguments"] += text
        return shaped


def new_call_id() -> str:
    """An id by which the tool's result will name the call."""
    return f"call_{uuid.uuid4().hex[:24]}"
