"""Kimi K2's calls: an id that has the name, and the arguments as JSON, each behind a marker."""

import re

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.tool_call_reader import CharCoroutine, NotAToolCall, ToolCallReader

# Some models write the second form of the section's markers.
_SECTIONS = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
_SECTION_ENDS = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")
_CHANGED_ID = re.compile(r"(?:functions[._])?(.+?)[._:]\d+")  # as some write it
_WHOLE_ID = re.compile(r"functions\.[A-Za-z0-9_.-]+:\d+")


def kimi(text: ToolCallReader) -> CharCoroutine:
    """Calls up to the end of their section, or one of them where a model forgets where the section begins.

    Within a section, text before a call is skipped, and the markers around a call may be missing.
    """
    if text.begin == _CALL:
        yield from _call(text, (yield from text.until("<")))
        return (yield from text.literal(_CALL_END, (yield from text.skip_space())))
    while True:
        before = yield from text.until("<")
        tag = yield from text.one_of((_CALL, _CALL_END, _ARGUMENTS, *_SECTIONS, *_SECTION_ENDS), "<")
        if tag in _SECTION_ENDS:
            return text.only_if_started()
        if tag == _CALL:
            yield from _call(text, (yield from text.until("<")))
        elif tag == _ARGUMENTS:
            yield from _call(text, before, "")


def _call(text: ToolCallReader, call_id: str, marker: str = _ARGUMENTS[1:]) -> CharCoroutine:
    """A call whose id has come, which is `functions.name:index`: what is left of the marker, and the arguments."""
    yield from text.literal(marker)
    call_id = call_id.strip()
    found = _ID.fullmatch(call_id)
    if found is None:
        raise NotAToolCall
    name = found[1]
    changed = _CHANGED_ID.fullmatch(call_id)
    if changed is not None and not text.is_known(name) and text.is_known(changed[1]):
        name = changed[1]
    text.start(name, call_id if _WHOLE_ID.fullmatch(call_id) else "")
    return (yield from text.arguments((yield from text.skip_space())))


_ENDS = (*_SECTION_ENDS, _CALL_END)
KIMI = ToolCallSyntax(
    "kimi_k2", (*_SECTIONS, _CALL), kimi, template_marks=_SECTIONS, other_markers=(_ARGUMENTS, *_ENDS), strays=_ENDS
)
