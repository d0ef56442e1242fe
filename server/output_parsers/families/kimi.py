"""Kimi K2's calls: an id that has the name, and the arguments as JSON, each behind a marker."""

import re

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.tool_call_reader import CharCoroutine, NotAToolCall, ToolCallReader

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")
_CHANGED_ID = re.compile(r"(?:functions[._])?(.+?)[._:]\d+")  # as some write it
_WHOLE_ID = re.compile(r"functions\.[A-Za-z0-9_.-]+:\d+")


def kimi(text: ToolCallReader) -> CharCoroutine:
    """Calls up to the end of their section, or one of them where a model forgets where the section begins."""
    if text.begin == _CALL:
        return (yield from _call(text))
    while (yield from text.one_of((_CALL, _SECTION_END), (yield from text.skip_space()))) == _CALL:
        yield from _call(text)
    return ""


def _call(text: ToolCallReader) -> CharCoroutine:
    """An id, which is `functions.name:index`, and the arguments."""
    call_id = (yield from text.until("<")).strip()
    yield from text.literal(_ARGUMENTS[1:])
    found = _ID.fullmatch(call_id)
    if found is None:
        raise NotAToolCall
    name = found[1]
    changed = _CHANGED_ID.fullmatch(call_id)
    if changed is not None and not text.is_known(name) and text.is_known(changed[1]):
        name = changed[1]
    text.start(name, call_id if _WHOLE_ID.fullmatch(call_id) else "")
    yield from text.arguments((yield from text.skip_space()))
    return (yield from text.literal(_CALL_END, (yield from text.skip_space())))


KIMI = ToolCallSyntax(
    "kimi_k2", (_SECTION, _CALL), kimi, template_marks=(_SECTION,),
    other_markers=(_SECTION_END, _ARGUMENTS, _CALL_END), strays=(_SECTION_END, _CALL_END),
)  # fmt: skip
