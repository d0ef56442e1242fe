"""DeepSeek's calls: names and arguments as JSON, each behind a marker."""

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.tool_call_reader import CharCoroutine, ToolCallReader

_CALLS = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
_CALL = "<\uff5ctool\u2581call\u2581begin\uff5c>"
_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
_CALL_END = "<\uff5ctool\u2581call\u2581end\uff5c>"
_CALLS_END = "<\uff5ctool\u2581calls\u2581end\uff5c>"


def deepseek(text: ToolCallReader) -> CharCoroutine:
    """V3 and R1 write `function`, a separator, the name and JSON in a fence; V3.1 the name, a separator and JSON.

    Some models forget the marker that begins all calls, or write it twice.
    """
    tag = text.begin
    while tag != _CALLS_END:
        if tag == _CALL:
            yield from _call(text)
        tag = yield from text.one_of((_CALL, _CALLS, _CALLS_END), (yield from text.skip_space()))
    return text.only_if_started()


def _call(text: ToolCallReader) -> CharCoroutine:
    name = yield from text.until("<")
    yield from text.literal(_SEPARATOR[1:])
    char = yield from text.skip_space()
    if char == "{":
        text.start(name.strip())
        yield from text.arguments(char)
    else:
        name = yield from text.until("\n", char)
        char = yield from text.skip_space()
        is_fenced = char == "`"
        if is_fenced:
            yield from text.literal("```", char)
            yield from text.until("\n")
            char = yield from text.skip_space()
        text.start(name.strip())
        yield from text.arguments(char)
        if is_fenced:
            yield from text.literal("```", (yield from text.skip_space()))
    return (yield from text.literal(_CALL_END, (yield from text.skip_space())))


_OTHERS = (_CALL, _SEPARATOR, _CALL_END, _CALLS_END)
DEEPSEEK = ToolCallSyntax(
    "deepseek_v3", (_CALLS,), deepseek, template_marks=(_CALLS,), other_markers=_OTHERS, strays=_OTHERS,
    inner_begins=(_CALL,),
)  # fmt: skip
