"""Parses calls written as Python, `name(key="value", other=[1, True])`; their arguments become JSON as they come."""

import json
import math
from collections.abc import Generator

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.tool_call_reader import MAX_NAME_CHARS, CharCoroutine, NotAToolCall, ToolCallReader

_OLMO_END = "</function_calls>"
MAX_DEPTH = 64  # of lists and dictionaries within each other
_SPACE = " \t\r\n"
_ALSO_IN_NAMES = ".-:/"  # of tools, which are no identifiers of Python then
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_HEX = {"x": 2, "u": 4, "U": 8}


def python_call(text: ToolCallReader, char: str, *, may_print: bool = False) -> CharCoroutine:
    """One call from the first character of its name, which is `char`, to its closing bracket.

    It is emitted once its first argument's name is known, so that a mere bracket stays text. `may_print` skips
    `print(…)`.
    """
    name, char = yield from python_name(char)
    return (yield from python_arguments(text, name, char, may_print=may_print))


def python_arguments(text: ToolCallReader, name: str, char: str, *, may_print: bool = False) -> CharCoroutine:
    """What follows the name of a call, from its bracket, which is `char`, to its closing bracket."""
    if char != "(":
        raise NotAToolCall
    if not text.is_known(name):
        name = name.removesuffix(".call")  # as Llama 3 writes calls of its own tools
    char = yield from text.skip_space()
    if may_print and name == "print":
        yield from python_call(text, char)
        return (yield from text.literal(")", (yield from text.skip_space())))
    if char == ")":
        text.start(name)
        text.emit("{}")
        text.end()
        return ""
    key = yield from _keyword(text, char)
    text.start(name)
    text.emit("{")
    while True:
        text.emit(json.dumps(key) + ": ")
        char = yield from _value(text, (yield from text.skip_space()), 0)
        char = yield from _behind_space(text, char)
        if char == ",":
            char = yield from text.skip_space()
        elif char != ")":
            raise NotAToolCall
        if char == ")":
            text.emit("}")
            text.end()
            return ""
        text.emit(", ")
        key = yield from _keyword(text, char)


def pythonic(text: ToolCallReader) -> CharCoroutine:
    """`[name(…), name(…)]`, whose bracket has come already, or that a control token has announced."""
    if text.begin != "[":
        yield from text.literal("[", (yield from text.skip_space()))
    return (yield from python_calls(text, (yield from text.skip_space())))


def python_calls(text: ToolCallReader, char: str) -> CharCoroutine:
    """`name(…), name(…)]` from its first character on."""
    if char == "]":
        raise NotAToolCall
    while char != "]":
        yield from python_call(text, char)
        char = yield from text.skip_space()
        if char == ",":
            char = yield from text.skip_space()
        elif char != "]":
            raise NotAToolCall
    return ""


def olmo3(text: ToolCallReader) -> CharCoroutine:
    """A call in each line, up to `</function_calls>`."""
    while (char := (yield from text.skip_space())) != _OLMO_END[0]:
        yield from python_call(text, char)
    yield from text.literal(_OLMO_END, char)
    return text.only_if_started()


def _keyword(text: ToolCallReader, char: str) -> CharCoroutine:
    """The name of an argument, from its first character to the equals sign behind it."""
    key, char = yield from _name(char)
    if (yield from _behind_space(text, char)) != "=":
        raise NotAToolCall
    return key


def python_name(char: str) -> Generator[None, str, tuple[str, str]]:
    """The name of a tool from its first character, and the first character behind it."""
    return (yield from _name(char, also=_ALSO_IN_NAMES))


def _name(char: str, also: str = "") -> Generator[None, str, tuple[str, str]]:
    """An identifier from its first character, and the first character behind it."""
    name = ""
    while char.isalnum() or char == "_" or (name and char in also):
        name += char
        if len(name) > MAX_NAME_CHARS:
            raise NotAToolCall
        char = yield
    if not name or name[0].isdigit():
        raise NotAToolCall
    return name, char


def _behind_space(text: ToolCallReader, char: str) -> CharCoroutine:
    return (yield from text.skip_space()) if char in _SPACE else char


def _value(text: ToolCallReader, char: str, depth: int) -> CharCoroutine:
    """A literal from its first character on; returns the first character behind it."""
    if depth > MAX_DEPTH:
        raise NotAToolCall
    if char in "\"'":
        return (yield from _string(text, char))
    if char in "[(":
        return (yield from _items(text, "]" if char == "[" else ")", depth))
    if char == "{":
        return (yield from _entries(text, depth))
    word = ""
    while char.isalnum() or char in "_+-.":
        word += char
        if len(word) > MAX_NAME_CHARS:
            raise NotAToolCall
        char = yield
    text.emit(_CONSTANTS.get(word) or _number(word))
    return char


def _number(word: str) -> str:
    try:
        return json.dumps(int(word, 0))
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError as error:
        raise NotAToolCall from error
    if not math.isfinite(number):
        raise NotAToolCall
    return json.dumps(number)


def _items(text: ToolCallReader, end: str, depth: int) -> CharCoroutine:
    text.emit("[")
    char = yield from text.skip_space()
    is_first = True
    while char != end:
        if not is_first:
            text.emit(", ")
        is_first = False
        char = yield from _behind_space(text, (yield from _value(text, char, depth + 1)))
        if char == ",":
            char = yield from text.skip_space()
        elif char != end:
            raise NotAToolCall
    text.emit("]")
    return (yield)


def _entries(text: ToolCallReader, depth: int) -> CharCoroutine:
    text.emit("{")
    char = yield from text.skip_space()
    is_first = True
    while char != "}":
        if not is_first:
            text.emit(", ")
        is_first = False
        if char not in "\"'":
            raise NotAToolCall
        char = yield from _behind_space(text, (yield from _string(text, char)))
        if char != ":":
            raise NotAToolCall
        text.emit(": ")
        char = yield from _value(text, (yield from text.skip_space()), depth + 1)
        char = yield from _behind_space(text, char)
        if char == ",":
            char = yield from text.skip_space()
        elif char != "}":
            raise NotAToolCall
    text.emit("}")
    return (yield)


def _string(text: ToolCallReader, quote: str) -> CharCoroutine:
    """A string from its quote on, which may be one of three; returns the first character behind it."""
    text.emit('"')
    char = yield
    num_quotes = 1
    if char == quote:
        char = yield
        if char != quote:  # an empty string
            text.emit('"')
            return char
        num_quotes, char = 3, (yield)
    num_seen = 0  # quotes in a row
    while True:
        if char == quote:
            num_seen += 1
            if num_seen == num_quotes:
                break
        else:
            text.emit(_json(quote * num_seen))
            num_seen = 0
            text.emit(_json((yield from _escape())) if char == "\\" else _json(char))
        char = yield
    text.emit('"')
    return (yield)


def _escape() -> CharCoroutine:
    char = yield
    if char not in _HEX:
        return _ESCAPES.get(char, char if char in "\\'\"" else "\\" + char)
    digits = ""
    for _ in range(_HEX[char]):
        digits += yield
    try:
        return chr(int(digits, 16))
    except (ValueError, OverflowError) as error:
        raise NotAToolCall from error


def _json(text: str) -> str:
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    return json.dumps(text)[1:-1] if any("\ud800" <= char <= "\udfff" for char in text) else written


PYTHONIC = ToolCallSyntax(
    "pythonic", ("[", "<|python_start|>"), pythonic, only_first=True,
    template_marks=("[func_name1(params_name1", "<|python_start|>"), is_ambiguous=True,
)  # fmt: skip
OLMO3 = ToolCallSyntax(
    "olmo3", ("<function_calls>",), olmo3,
    template_marks=("<function_calls>",), other_markers=(_OLMO_END,), strays=(_OLMO_END,),
)  # fmt: skip
