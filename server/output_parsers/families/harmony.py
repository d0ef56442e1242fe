"""Harmony, the form of gpt-oss's answers: messages with a channel, and some with a recipient.

`<|channel|>analysis<|message|>` begins reasoning, `<|channel|>final<|message|>` text, and
`<|channel|>commentary to=functions.name <|constrain|>json<|message|>` the arguments of a call. The next message begins
with `<|start|>assistant`.
"""

import re

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.markers import overlap
from server.output_parsers.reading.tool_call_reader import CharCoroutine, NotAToolCall, ToolCallReader

MAX_HEADER_CHARS = 512
_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_TO_FUNCTION = " to=functions."  # begins the header of an answer whose prompt ends with `<|start|>assistant`
_NAMES_CHANNEL = re.compile(r"analysis|commentary|final|\bto=")
_NOBODY = ("all", "user", "assistant")


def harmony(text: ToolCallReader) -> CharCoroutine:
    """The header of a message and, unless the message is text, what follows it."""
    header, end = text.begin, ""
    while True:
        while not header.endswith(_MESSAGE):
            if len(header) > MAX_HEADER_CHARS or header.endswith("\n"):
                raise NotAToolCall
            header += yield
            if text.begin != _TO_FUNCTION and header.endswith(_ENDS) and _NAMES_CHANNEL.search(header):
                return ""  # a message without content
        recipient = _RECIPIENT.search(header)
        if recipient is not None and recipient[1] not in _NOBODY:
            return (yield from _call(text, recipient[1].removeprefix("functions.")))
        if f"{_CHANNEL}analysis" not in header:
            return ""
        end = yield from _reasoning(text)
        if end in _ENDS:
            return ""
        header = end


def _call(text: ToolCallReader, name: str) -> CharCoroutine:
    """The arguments; the marker behind them ends the answer, and does not come always."""
    char = yield from text.skip_space()
    if char == "<":
        yield from text.one_of(_ENDS, char)
        text.start(name)
        text.emit("{}")
        text.end()
        return ""
    if char != "{":
        raise NotAToolCall
    text.start(name)
    return (yield from text.arguments(char))


def _reasoning(text: ToolCallReader) -> CharCoroutine:
    """Reasoning behind the first one, up to any marker, which it returns."""
    markers = (*_ENDS, _START, _CHANNEL)
    held = ""
    while True:
        held += yield
        end = next((marker for marker in markers if held.endswith(marker)), "")
        num_held = max(overlap(held, marker) for marker in markers)
        sure = held.removesuffix(end) if end else held[: len(held) - num_held]
        text.reason(sure)
        if end:
            return end
        held = held[len(held) - num_held :]


HARMONY = ToolCallSyntax(
    "openai", (_START, _CHANNEL, _TO_FUNCTION), harmony, template_marks=("<|channel|>analysis",),
    other_markers=(_MESSAGE, _CONSTRAIN, *_ENDS), strays=(_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS),
    frames_text=True,
)  # fmt: skip
