"""GLM's calls: `<tool_call>name`, then `<arg_key>key</arg_key><arg_value>value</arg_value>` for each argument."""

import json

from server.output_parsers.families.tagged_calls import tagged_value
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.argument_types import argument_type
from server.output_parsers.reading.tool_call_reader import MAX_NAME_CHARS, CharCoroutine, NotAToolCall, ToolCallReader

_END = "</tool_call>"


def glm(text: ToolCallReader) -> CharCoroutine:
    """A name and its arguments, or an object in JSON, up to `</tool_call>`."""
    char = yield from text.skip_space()
    if char == "{":
        yield from text.call_object(char)
        return (yield from text.literal(_END, (yield from text.skip_space())))
    name = ""
    while char not in "<\n":
        name += char
        if len(name) > MAX_NAME_CHARS:
            raise NotAToolCall
        char = yield
    name = name.strip()
    text.start(name)
    text.emit("{")
    comma = ""
    char = char if char == "<" else (yield from text.skip_space())
    while (yield from text.one_of(("<arg_key>", _END), char)) != _END:
        key = (yield from text.until("<")).strip()
        yield from text.literal("/arg_key>")
        yield from text.literal("<arg_value>", (yield from text.skip_space()))
        text.emit(f"{comma}{json.dumps(key, ensure_ascii=False)}: ")
        comma = ", "
        yield from tagged_value(text, argument_type(text.schema_of(name), key), "</arg_value>", is_padded=False)
        char = yield from text.skip_space()
    text.emit("}")
    text.end()
    return ""


GLM = ToolCallSyntax(
    "glm45", ("<tool_call>",), glm, template_marks=("<arg_key>",),
    other_markers=(_END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"), strays=(_END,),
)  # fmt: skip
