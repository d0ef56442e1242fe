"""Gemma 4's calls, `call:name{key:<|"|>text<|"|>,other:[1,true]}`, with a notation of values of its own.

FunctionGemma's are the same but for their marks.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.argument_types import has_argument
from server.output_parsers.reading.markers import overlap
from server.output_parsers.reading.tool_call_reader import MAX_NAME_CHARS, CharCoroutine, NotAToolCall, ToolCallReader

MAX_DEPTH = 64  # of lists and mappings within each other
_QUOTE = '<|"|>'
_END = "<tool_call|>"
_ESCAPE = "<escape>"
_END_OF_CALL = "<end_function_call>"
_SPACE = " \t\r\n"
_MAX_SPACES = 1024  # behind a mark, all of which are looked at with each that comes
_NEXT_KEY = re.compile(r"""(?:,\s*)?["'<|>]*(?P<key>[\w.$-]*)["'<|>]*\s*(?P<behind>[^\w\s"'<|>.$-])?""")
_CONSTANTS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}


class _Frame(NamedTuple):
    """What a value stands in."""

    quote: str  # the mark around texts
    close: str  # the bracket behind the last value
    colon: str = ""  # what stands between a key and its value; nothing in a list
    schema: Any = None  # of the keys, where it is known

    @property
    def mapping(self) -> _Frame:
        """The frame of the values of a mapping within this one."""
        return _Frame(self.quote, "}", ":")

    @property
    def items(self) -> _Frame:
        """The frame of the values of a list within this one."""
        return _Frame(self.quote, "]")


def gemma4(text: ToolCallReader) -> CharCoroutine:
    return (yield from _call(text, _QUOTE, _END))


def functiongemma(text: ToolCallReader) -> CharCoroutine:
    return (yield from _call(text, _ESCAPE, _END_OF_CALL))


def _call(text: ToolCallReader, quote: str, end: str) -> CharCoroutine:
    """`call:name{…}`, or Python's `call:name(key=value)`; some models put a namespace before the name."""
    yield from text.literal("call:", (yield from text.skip_space()))
    name, char = "", (yield)
    while char not in "{(":
        name += char
        if len(name) > MAX_NAME_CHARS:
            raise NotAToolCall
        char = yield
    name = name.strip()
    if not text.is_known(name) and text.is_known(name.rpartition(":")[2]):
        name = name.rpartition(":")[2]
    text.start(name)
    close, colon = "}:" if char == "{" else ")="
    yield from _mapping(text, 0, _Frame(quote, close, colon, text.schema_of(name)))
    text.end()
    return (yield from text.literal(end, (yield from text.skip_space())))


def _mapping(text: ToolCallReader, depth: int, frame: _Frame) -> CharCoroutine:
    """What follows the bracket of a mapping, up to its closing bracket. Some models forget commas."""
    text.emit("{")
    comma = ""
    char = yield from text.skip_space()
    while char != frame.close:
        text.emit(comma)
        comma = ", "
        yield from _key(text, char, frame)
        text.emit(": ")
        char = yield from _value(text, (yield from text.skip_space()), depth + 1, frame)
        if char == ",":
            char = yield from text.skip_space()
    text.emit("}")
    return ""


def _key(text: ToolCallReader, char: str, frame: _Frame) -> CharCoroutine:
    """The name of an argument up to its colon, in quotation marks or without."""
    if char == "<":
        yield from text.literal(frame.quote, char)
        yield from text.quoted((frame.quote,))
        return (yield from text.literal(frame.colon, (yield from text.skip_space())))
    if char in ('"', "'"):
        key = yield from text.string(char)
        yield from text.literal(frame.colon, (yield from text.skip_space()))
    else:
        key = (yield from text.until(frame.colon, char)).strip()
    text.emit(json.dumps(key, ensure_ascii=False))
    return ""


def _value(text: ToolCallReader, char: str, depth: int, frame: _Frame) -> CharCoroutine:
    """A value from its first character; returns the first character behind it that is not white space."""
    if depth > MAX_DEPTH:
        raise NotAToolCall
    if char == "<":
        yield from text.literal(frame.quote, char)
        yield from _text(text, frame)
    elif char == "{":
        yield from _mapping(text, depth, frame.mapping)
    elif char == "[":
        yield from _items(text, depth, frame.items)
    elif char in ('"', "'"):
        written, char = yield from text.value(char)
        text.emit(written)
        return char
    else:
        word = ""
        while char not in (",", "}", "]", frame.close):
            word += char
            if word.endswith(frame.quote):  # a text whose first mark is missing
                text.emit(json.dumps(word.removesuffix(frame.quote), ensure_ascii=False))
                return (yield from text.skip_space())
            if len(word) > MAX_NAME_CHARS:
                raise NotAToolCall
            char = yield
        if char == "," and frame.colon and _word(word.strip()).startswith('"'):
            seen = yield  # a comma in such a text
            while not seen.endswith((frame.quote, frame.colon, frame.close)) and len(seen) < MAX_NAME_CHARS:
                seen += yield
            if seen.endswith(frame.quote) and seen.lstrip() != frame.quote:
                text.emit(json.dumps(f"{word},{seen.removesuffix(frame.quote)}", ensure_ascii=False))
                return (yield from text.skip_space())
            text.again(seen)
        text.emit(_word(word.strip()))
        return char
    return (yield from text.skip_space())


def _text(text: ToolCallReader, frame: _Frame) -> CharCoroutine:
    """A text up to the mark that ends it. Within a text, the same mark stands for a quotation mark."""
    text.emit('"')
    held = ""
    while True:
        held += yield
        if not held.endswith(frame.quote):
            sure = held[: len(held) - overlap(held, frame.quote)]
            text.emit(json.dumps(sure, ensure_ascii=False)[1:-1])
            held = held[len(sure) :]
            continue
        seen = yield
        while (is_end := _is_end(seen, frame)) is None:
            seen += yield
        text.again(seen)
        if is_end:
            text.emit('"')
            return ""
        text.emit('\\"')
        held = ""


def _is_end(seen: str, frame: _Frame) -> bool | None:
    """Whether a mark ends its text, by what follows it; None as long as that is not known.

    Its frame ends there, or its next entry follows, whose comma may be missing where the schema has its key.
    """
    rest = seen.lstrip()
    if not rest or rest == ",":
        return True if len(seen) > _MAX_SPACES else None
    if rest[0] == frame.close:
        return True
    if not frame.colon:
        return rest[0] == ","
    found = _NEXT_KEY.fullmatch(rest)
    if found is None or len(rest) > MAX_NAME_CHARS:
        return False
    if not found["behind"]:
        return None
    has_comma = rest[0] == "," or has_argument(frame.schema, found["key"])
    return has_comma and found["behind"] == frame.colon


def _items(text: ToolCallReader, depth: int, frame: _Frame) -> CharCoroutine:
    """What follows the bracket of a list, up to its closing bracket."""
    text.emit("[")
    comma = ""
    char = yield from text.skip_space()
    while char != "]":
        text.emit(comma)
        comma = ", "
        char = yield from _value(text, char, depth + 1, frame)
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
FUNCTIONGEMMA = ToolCallSyntax(
    "functiongemma", ("<start_function_call>",), functiongemma,
    template_marks=("<start_function_call>",), other_markers=(_END_OF_CALL, _ESCAPE), strays=(_END_OF_CALL,),
)  # fmt: skip
