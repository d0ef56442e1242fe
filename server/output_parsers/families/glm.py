"""GLM's calls: `<tool_call>name`, then `<arg_key>key</arg_key><arg_value>value</arg_value>` for each argument."""

import json

from server.output_parsers.families.tagged_calls import Ends, Tags, tagged_value
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.argument_types import argument_type
from server.output_parsers.reading.tool_call_reader import MAX_NAME_CHARS, CharCoroutine, NotAToolCall, ToolCallReader

_CALL, _END = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_TAGS = Tags(_CALL, _END, _KEY, _VALUE_END, all_end=_END)
_ANY = (_KEY, _KEY_END, _VALUE, _VALUE_END, _END)


def glm(text: ToolCallReader) -> CharCoroutine:
    while (yield from _call(text)) == _CALL:
        pass
    return ""


def _call(text: ToolCallReader) -> CharCoroutine:
    """A name and its arguments, or an object in JSON, up to `</tool_call>`, or the next `<tool_call>`: the last tag."""
    char = yield from text.skip_space()
    while char == "<":  # the tag once more: some models write it twice
        yield from text.literal(_CALL, char)
        char = yield from text.skip_space()
    if char == "{":
        yield from text.call_object(char)
        return (yield from text.one_of((_END, _CALL), (yield from text.skip_space())))
    name = ""
    while char not in "<\n":
        name += char
        if len(name) > MAX_NAME_CHARS:
            raise NotAToolCall
        char = yield
    name = name.strip()
    tag = yield from text.one_of(_ANY, char if char == "<" else (yield from text.skip_space()))
    key = ""
    if tag == _KEY_END:  # the name and the first key, whose tag some models forget between them
        name, key = text.split_name(name)
    text.start(name)
    text.emit("{")
    comma = ""
    while tag not in (_END, _CALL):
        if tag == _VALUE_END:  # once more
            tag = yield from text.one_of(_ANY, (yield from text.skip_space()))
            continue
        if not key:
            key = yield from _key(text, tag)
        text.emit(f"{comma}{json.dumps(key, ensure_ascii=False)}: ")
        comma = ", "
        char = yield from text.skip_space()
        while char == "<" and (yield from text.one_of((_KEY_END, _VALUE), char)) == _KEY_END:  # once more
            char = yield from text.skip_space()
        if char != "<":  # the tag of the value is missing
            text.again(char)
        kind = argument_type(text.schema_of(name), key)
        tag, key = (yield from tagged_value(text, kind, Ends(_TAGS, None))), ""
    text.emit("}")
    text.end(tag if tag == _CALL else "")
    return tag


def _key(text: ToolCallReader, tag: str) -> CharCoroutine:
    """The key of an argument up to its closing tag, where `tag` has come."""
    key = ""
    while not key:
        if tag != _KEY:
            raise NotAToolCall
        key = (yield from text.until("<")).strip()
        tag = yield from text.one_of((_KEY_END,) if key else (_KEY, _KEY_END), "<")
    return key


GLM = ToolCallSyntax(
    "glm45", (_CALL,), glm, template_marks=(_KEY,),
    other_markers=_ANY, strays=(_END,),
)  # fmt: skip
