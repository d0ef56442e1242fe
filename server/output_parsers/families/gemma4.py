"""Gemma 4's calls: `call:name{key:<|"|>text<|"|>,other:[1,true]}`, with a notation of values of its own."""

import json

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.tool_call_reader import MAX_NAME_CHARS, CharCoroutine, NotAToolCall, ToolCallReader

MAX_DEPTH = 64  # of lists and mappings within each other
_QUOTE = '<|"|>'
_END = "<tool_call|>"
_SPACE = " \t\r\n"
_CONSTANTS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}


def gemma4(text: ToolCallReader) -> CharCoroutine:
    yield from text.literal("call:", (yield from text.skip_space()))
    text.start((yield from text.until("{")).strip())
    yield from _mapping(text, 0)
    text.end()
    return (yield from text.literal(_END, (yield from text.skip_space())))


def _mapping(text: ToolCallReader, depth: int) -> CharCoroutine:
    """What follows the brace of a mapping, up to its closing brace."""
    text.emit("{")
    comma = ""
    char = yield from text.skip_space()
    while char != "}":
        text.emit(comma)
        comma = ", "
        yield from _key(text, char)
        text.emit(": ")
        char = yield from _value(text, (yield from text.skip_space()), depth + 1)
        if char == ",":
            char = yield from text.skip_space()
        elif char != "}":
            raise NotAToolCall
    text.emit("}")
    return ""


def _key(text: ToolCallReader, char: str) -> CharCoroutine:
    """The name of an argument up to its colon, in quotation marks or without."""
    if char == "<":
        yield from text.literal(_QUOTE, char)
        yield from text.quoted((_QUOTE,))
        return (yield from text.literal(":", (yield from text.skip_space())))
    if char == '"':
        key = yield from text.string(char)
        yield from text.literal(":", (yield from text.skip_space()))
    else:
        key = (yield from text.until(":", char)).strip()
    text.emit(json.dumps(key, ensure_ascii=False))
    return ""


def _value(text: ToolCallReader, char: str, depth: int) -> CharCoroutine:
    """A value from its first character; returns the first character behind it that is not white space."""
    if depth > MAX_DEPTH:
        raise NotAToolCall
    if char == "<":
        yield from text.literal(_QUOTE, char)
        yield from text.quoted((_QUOTE,))
    elif char == "{":
        yield from _mapping(text, depth)
    elif char == "[":
        yield from _items(text, depth)
    elif char == '"':
        written, char = yield from text.value(char)
        text.emit(written)
        return char
    else:
        word = ""
        while char not in ",}]":
            word += char
            if len(word) > MAX_NAME_CHARS:
                raise NotAToolCall
            char = yield
        text.emit(_word(word.strip()))
        return char
    return (yield from text.skip_space())


def _items(text: ToolCallReader, depth: int) -> CharCoroutine:
    """What follows the bracket of a list, up to its closing bracket."""
    text.emit("[")
    comma = ""
    char = yield from text.skip_space()
    while char != "]":
        text.emit(comma)
        comma = ", "
        char = yield from _value(text, char, depth + 1)
        if char == ",":
            char = yield from text.skip_space()
        elif char != "]":
            raise NotAToolCall
    text.emit("]")
    return ""


def _word(word: str) -> str:
    """The JSON of a value without quotation marks: a constant, a number, or else a text."""
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    try:
        number = json.loads(word, parse_constant=_refuse)
    except ValueError:
        return json.dumps(word, ensure_ascii=False)
    return word if isinstance(number, int | float) else json.dumps(word, ensure_ascii=False)


def _refuse(constant: str) -> float:
    raise ValueError(constant)


GEMMA4 = ToolCallSyntax(
    "gemma4", ("<|tool_call>",), gemma4,
    template_marks=("<|tool_call>call:",), other_markers=(_END, _QUOTE, "<|channel>", "<channel|>"), strays=(_END,),
)  # fmt: skip
