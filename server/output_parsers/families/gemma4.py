"""Gemma 4's calls, `call:name{key:<|"|>text<|"|>,other:[1,true]}`, with a notation of values of its own.

FunctionGemma's are the same but for their marks.
"""

from __future__ import annotations

import json
from collections.abc import Generator
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
_MAX_SPACES = 1024  # behind a mark
_OF_MARKS = frozenset("\"'<|>")
_MAX_MARK_CHARS = 8  # around a key, so that what is read once more behind a mark stays short
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
        is_end, seen = yield from _is_end(frame)
        text.again(seen)
        if is_end:
            text.emit('"')
            return ""
        text.emit('\\"')
        held = ""


def _is_end(frame: _Frame) -> Generator[None, str, tuple[bool, str]]:
    """Whether a mark ends its text, by what follows it, and what has been read to see it.

    Its frame ends there, or its next entry follows, whose comma may be missing where the schema has its key.
    """
    ahead = _Ahead()
    yield from ahead.skip_space()
    if ahead.char in (frame.close, ""):
        return True, ahead.seen
    has_comma = ahead.char == ","
    if not frame.colon:
        return has_comma, ahead.seen
    if has_comma:
        yield from ahead.skip_space()
        if not ahead.char:
            return True, ahead.seen
    yield from ahead.skip_marks()
    key = ""
    while (ahead.char.isalnum() or ahead.char in "_.$-") and len(key) < MAX_NAME_CHARS:
        key += ahead.char
        yield from ahead.read()
    yield from ahead.skip_marks()
    if ahead.char in _SPACE:
        yield from ahead.skip_space()
    is_entry = has_comma or has_argument(frame.schema, key)
    return is_entry and ahead.char == frame.colon, ahead.seen


class _Ahead:
    """Reads what is read once more later."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self.char = ""  # the last one; nothing behind very long white space

    @property
    def seen(self) -> str:
        return "".join(self._seen)

    def read(self) -> CharCoroutine:
        self.char = yield
        self._seen.append(self.char)
        return ""

    def skip_space(self) -> CharCoroutine:
        """To the first character that is no white space."""
        for _ in range(_MAX_SPACES):
            yield from self.read()
            if not self.char.isspace():
                return ""
        self.char = ""
        return ""

    def skip_marks(self) -> CharCoroutine:
        """To the first character that is of no quotation mark, from the last one on."""
        for _ in range(_MAX_MARK_CHARS):
            if self.char not in _OF_MARKS:
                break
            yield from self.read()
        return ""


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
