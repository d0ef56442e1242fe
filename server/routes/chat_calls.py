"""The tool calls of a chat answer, in the shape that OpenAI's clients expect."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from server.tools.call_events import CallArguments, CallEvent, CallStart, Content
from server.tools.syntaxes import Syntax, SyntaxReader

FINISH_REASON = "tool_calls"


class CallDelta(NamedTuple):
    """What a piece of an answer's text comes to."""

    content: str
    tool_calls: list[dict[str, Any]]  # as in a chunk's delta

    @property
    def is_empty(self) -> bool:
        return not self.content and not self.tool_calls


class ChoiceCalls:
    """Tells the calls of one choice from its other text."""

    def __init__(self, syntax: Syntax) -> None:
        self._reader = SyntaxReader(syntax)
        self._num_calls = 0

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    def feed(self, text: str, *, is_last: bool) -> CallDelta:
        """What has become certain with `text`; with the last text, all of it."""
        events = [*self._reader.feed(text), *(self._reader.flush() if is_last else ())]
        content = "".join(event.text for event in events if isinstance(event, Content))
        return CallDelta(content, self._shape(events))

    def _shape(self, events: Sequence[CallEvent]) -> list[dict[str, Any]]:
        shaped: list[dict[str, Any]] = []
        for event in events:
            match event:
                case CallStart(name):
                    function = {"name": name, "arguments": ""}
                    shaped.append(
                        {"index": self._num_calls, "id": new_call_id(), "type": "function", "function": function}
                    )
                    self._num_calls += 1
                case CallArguments(text):
                    index = self._num_calls - 1
                    if not shaped or shaped[-1]["index"] != index:
                        shaped.append({"index": index, "function": {"arguments": ""}})
                    shaped[-1]["function"]["arguments"] += text
        return shaped


def shape_message(text: str, syntax: Syntax) -> tuple[dict[str, Any], bool]:
    """The content and the calls of a whole answer, as parts of its message, and whether there are calls."""
    calls = ChoiceCalls(syntax)
    delta = calls.feed(text, is_last=True)
    if not calls.has_calls:
        return {"content": delta.content}, False
    shaped = [{name: part for name, part in call.items() if name != "index"} for call in delta.tool_calls]
    return {"content": delta.content or None, "tool_calls": shaped}, True


def new_call_id() -> str:
    """An id by which the tool's result will name the call."""
    return f"call_{uuid.uuid4().hex[:24]}"
