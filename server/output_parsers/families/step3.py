"""Step 3's calls: a name and arguments in tags of its own, each call and all of them between markers."""

from server.output_parsers.families.tagged_calls import Tags, tagged_call
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.tool_call_reader import CharCoroutine, ToolCallReader

_CALLS, _CALLS_END = "<\uff5ctool_calls_begin\uff5c>", "<\uff5ctool_calls_end\uff5c>"
_CALL, _CALL_END = "<\uff5ctool_call_begin\uff5c>", "<\uff5ctool_call_end\uff5c>"
_SEPARATOR = "<\uff5ctool_sep\uff5c>"
_TAGS = Tags(
    '<steptml:invoke name="', "</steptml:invoke>", '<steptml:parameter name="', "</steptml:parameter>", _CALL_END,
    is_padded=True,
)  # fmt: skip


def step3(text: ToolCallReader) -> CharCoroutine:
    """`function`, a separator and a call in tags, for each call. Some models forget markers, or write them twice."""
    tag = text.begin
    while tag != _CALLS_END:
        if tag == _CALL:
            yield from text.literal("function", (yield from text.skip_space()))
            tag = yield from text.one_of((_SEPARATOR,), (yield from text.skip_space()))
        elif tag == _TAGS.call:
            tag = yield from tagged_call(text, _TAGS)
            if tag == _TAGS.call:
                continue
        tag = yield from text.one_of((_CALLS, _CALL, _TAGS.call, _CALL_END, _CALLS_END), (yield from text.skip_space()))
    return text.only_if_started()


_OTHERS = (_CALL, _SEPARATOR, _CALL_END, _CALLS_END)
STEP3 = ToolCallSyntax(
    "step3", (_CALLS,), step3, template_marks=("<steptml:invoke",), other_markers=_OTHERS, strays=_OTHERS,
    inner_begins=(_CALL,),
)  # fmt: skip
