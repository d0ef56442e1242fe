"""Incremental parsers of tool calls, one for the syntax of each family of models. They begin behind the marker."""

import json
from collections.abc import Generator

from server.output_parsers.argument_types import ArgumentType, argument_type
from server.output_parsers.pythonic_calls import python_call, python_calls
from server.output_parsers.reasoning_parser import overlap
from server.output_parsers.tool_call_reader import MAX_NAME_CHARS, CharCoroutine, NotAToolCall, ToolCallReader

_DEEPSEEK_CALL = "<\uff5ctool\u2581call\u2581begin\uff5c>"
_DEEPSEEK_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
_DEEPSEEK_CALL_END = "<\uff5ctool\u2581call\u2581end\uff5c>"
_DEEPSEEK_END = "<\uff5ctool\u2581calls\u2581end\uff5c>"
DEEPSEEK_MARKERS = (_DEEPSEEK_CALL, _DEEPSEEK_SEPARATOR, _DEEPSEEK_CALL_END, _DEEPSEEK_END)
_VALUE_ENDS = ("\n</parameter>", "</parameter>")
MAX_VALUE_CHARS = 1 << 16  # of a parameter that is no text, and so is emitted whole


def hermes(text: ToolCallReader) -> CharCoroutine:
    """`{…}</tool_call>`, or Qwen Coder's `<function=…>…</function></tool_call>`."""
    char = yield from text.skip_space()
    if char == "<":
        yield from text.literal("function=")
        yield from xml_call(text)
    else:
        yield from text.call_object(char)
    return (yield from text.literal("</tool_call>", (yield from text.skip_space())))


def granite(text: ToolCallReader) -> CharCoroutine:
    """An array of calls, or one call with its closing tag."""
    char = yield from text.skip_space()
    if char == "[":
        return (yield from text.call_objects(char))
    yield from text.call_object(char)
    return (yield from text.literal("</tool_call>", (yield from text.skip_space())))


def phi(text: ToolCallReader) -> CharCoroutine:
    return (yield from text.call_objects((yield from text.skip_space())))


def mistral(text: ToolCallReader) -> CharCoroutine:
    """An array of calls; newer models write `name[ARGS]{…}` for each, some with `[CALL_ID]` and an id in between."""
    char = yield from text.skip_space()
    if char == "[":
        return (yield from text.call_objects(char))
    name, char = yield from _until(char, "[")
    yield from text.literal("[", char)
    char = yield
    if char == "C":
        yield from text.literal("CALL_ID]", char)
        yield from _until((yield), "[")
        char = yield
    yield from text.literal("ARGS]", char)
    text.start(name.strip())
    return (yield from text.arguments((yield from text.skip_space())))


def llama(text: ToolCallReader) -> CharCoroutine:
    """An object whose brace has come already, or that a control token has announced."""
    return (yield from text.call_object("{" if text.begin == "{" else (yield from text.skip_space())))


def array(text: ToolCallReader) -> CharCoroutine:
    """An array, whose bracket has come already."""
    return (yield from text.call_objects("["))


def pythonic(text: ToolCallReader) -> CharCoroutine:
    """`[name(…), name(…)]`, whose bracket has come already, or that a control token has announced."""
    if text.begin != "[":
        yield from text.literal("[", (yield from text.skip_space()))
    return (yield from python_calls(text))


def gemma(text: ToolCallReader) -> CharCoroutine:
    """A fence of code with JSON (an object or an array) or Python in it; `print(…)` around a call is skipped."""
    char = yield from text.skip_space()
    if char == "{":
        yield from text.call_object(char)
        return (yield from text.literal("```", (yield from text.skip_space())))
    end = "`"
    if char == "[":
        char = yield from text.skip_space()
        if char == "{":
            yield from text.more_objects(char)
            return (yield from text.literal("```", (yield from text.skip_space())))
        end = "]"
    while char != end:
        yield from python_call(text, char, may_print=True)
        char = yield from text.skip_space()
        if char in ",;":
            char = yield from text.skip_space()
    if end == "]":
        char = yield from text.skip_space()
    return (yield from text.literal("```", char))


def deepseek(text: ToolCallReader) -> CharCoroutine:
    """V3 and R1 write `function`, a separator, the name and JSON in a fence; V3.1 the name, a separator and JSON."""
    common = len("<\uff5ctool\u2581call")
    while True:
        yield from text.literal(_DEEPSEEK_CALL[:common], (yield from text.skip_space()))
        char = yield
        if char == "s":
            return (yield from text.literal(_DEEPSEEK_END[common:], char))
        yield from text.literal(_DEEPSEEK_CALL[common:], char)
        name, char = yield from _until((yield), "<")
        yield from text.literal(_DEEPSEEK_SEPARATOR, char)
        char = yield from text.skip_space()
        if char == "{":
            text.start(name.strip())
            yield from text.arguments(char)
        else:
            name, char = yield from _until(char, "\n")
            yield from text.literal("```json", (yield from text.skip_space()))
            text.start(name.strip())
            yield from text.arguments((yield from text.skip_space()))
            yield from text.literal("```", (yield from text.skip_space()))
        yield from text.literal(_DEEPSEEK_CALL_END, (yield from text.skip_space()))


def qwen_coder(text: ToolCallReader) -> CharCoroutine:
    """As `hermes`; some models omit the outer tag."""
    if text.begin == "<function=":
        return (yield from xml_call(text))
    return (yield from hermes(text))


def xml_call(text: ToolCallReader) -> CharCoroutine:
    """`name>`, then `<parameter=key>value</parameter>` for each argument or an object in JSON, then `</function>`.

    A value is text, unless the tool's schema says otherwise.
    """
    name, _ = yield from _until((yield), ">")
    name = name.strip()
    text.start(name)
    char = yield from text.skip_space()
    if char == "{":
        yield from text.arguments(char)
        return (yield from text.literal("</function>", (yield from text.skip_space())))
    text.emit("{")
    is_first = True
    while True:
        yield from text.literal("<", char or (yield from text.skip_space()))
        char = yield
        if char == "/":
            yield from text.literal("function>")
            text.emit("}")
            text.end()
            return ""
        yield from text.literal("parameter=", char)
        key, _ = yield from _until((yield), ">")
        text.emit(f"{'' if is_first else ', '}{json.dumps(key.strip(), ensure_ascii=False)}: ")
        is_first = False
        yield from _xml_value(text, argument_type(text.schema_of(name), key.strip()))
        char = ""


def _xml_value(text: ToolCallReader, kind: ArgumentType) -> CharCoroutine:
    """A value up to its closing tag, without the line ends next to the opening and the closing tag.

    Texts, objects and arrays are emitted as they come, other values whole.
    """
    char = yield
    if char == "\n":
        char = yield
    if "string" not in kind.types and kind.values is None:
        before = ""
        while char in " \t\r\n":
            before += char
            char = yield
        if (char == "{" and "object" in kind.types) or (char == "[" and "array" in kind.types):
            yield from text.json_value(char)
            yield from text.literal("</parameter>", (yield from text.skip_space()))
            return ""
        char = before + char
    held, value, num_chars = char, "", 0
    if kind.is_text and kind.values is None:
        text.emit('"')
    while True:
        end = next((end for end in _VALUE_ENDS if held.endswith(end)), None)
        if end is None:
            num_sure = len(held) - max(overlap(held, marker) for marker in _VALUE_ENDS)
        else:
            num_sure = len(held) - len(end)
        sure, held = held[:num_sure], held[num_sure:]
        if kind.is_text and kind.values is None:
            text.emit(json.dumps(sure, ensure_ascii=False)[1:-1])
        else:
            value += sure
            num_chars += len(sure)
            if num_chars > MAX_VALUE_CHARS:
                raise NotAToolCall
        if end is not None:
            break
        held += yield
    text.emit('"' if kind.is_text and kind.values is None else kind.to_json(value))
    return ""


def _until(char: str, end: str) -> Generator[None, str, tuple[str, str]]:
    """A short text from `char` on, and the first character of `end` behind it."""
    text = ""
    while char != end:
        text += char
        if len(text) > MAX_NAME_CHARS:
            raise NotAToolCall
        char = yield
    return text, char
