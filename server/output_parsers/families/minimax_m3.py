"""MiniMax M3's calls: `<invoke name="…">` around elements with the names of arguments, every tag behind a marker."""

from __future__ import annotations

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.elements import ElementReader
from server.output_parsers.reading.tool_call_reader import CharCoroutine, ToolCallReader

_MARK = "]<]minimax[>["  # a token of its own, before every tag
_CALLS, _CALLS_END = f"{_MARK}<tool_call>", f"{_MARK}</tool_call>"
_CALL, _CALL_END = f'{_MARK}<invoke name="', f"{_MARK}</invoke>"
_TAGS = (_CALLS, _CALL, _CALLS_END)
_ANY_TAG = (*_TAGS, *(tag.removeprefix(_MARK) for tag in _TAGS))


def minimax_m3(text: ToolCallReader) -> CharCoroutine:
    """Calls up to the tag that ends all of them. Some models forget the tag that begins them, and some marks."""
    tag = text.begin
    while not _CALLS_END.endswith(tag):
        if _CALL.endswith(tag):
            yield from _call(text)
        tag = yield from text.one_of(_ANY_TAG, (yield from text.skip_space()))
    return text.only_if_started()


def _call(text: ToolCallReader) -> CharCoroutine:
    """A call from its name to its closing tag."""
    name = yield from text.until('"')
    yield from text.literal(">", (yield from text.skip_space()))
    text.start(name)
    yield from ElementReader(text, _MARK).arguments(text.schema_of(name), _CALL_END)
    return ""


MINIMAX_M3 = ToolCallSyntax(
    "minimax_m3", (_CALLS,), minimax_m3,
    template_marks=(_MARK,), other_markers=(_MARK, "<tool_call>", "</tool_call>"), strays=(_CALLS_END, _MARK),
    inner_begins=(_CALL,),
)  # fmt: skip
