"""Parses calls in the place of a model's own syntax: objects in JSON, Python, ReAct and elements, in any wrapper."""

from server.output_parsers.families.pythonic_calls import python_arguments, python_call, python_calls, python_name
from server.output_parsers.families.tagged_calls import MINIMAX_TAGS, QWEN, tagged_calls
from server.output_parsers.reading.elements import ElementReader
from server.output_parsers.reading.json_repair import CLOSING_QUOTES
from server.output_parsers.reading.tool_call_reader import (
    ARGUMENT_KEYS,
    MAX_NAME_CHARS,
    NAME_KEYS,
    CharCoroutine,
    NotAToolCall,
    TextEnded,
    ToolCallReader,
)

ACTION, _INPUT, OBSERVATION = "Action:", "Action Input:", "Observation:"  # ReAct's words
MAX_TAG_CHARS = 40
MAX_TAGS = 8  # around a call
_SPACE = " \t\r\n"
_OTHER_KEYS = ("id", "type", "call_id", "index")  # beside a name and arguments; an object with others is something else
_TAG_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-|")


def call_within_code(text: ToolCallReader) -> CharCoroutine:
    """`wrapped_call` within code of an answer, in which Python and elements are no calls."""
    return (yield from wrapped_call(text, is_code=True))


def wrapped_call(text: ToolCallReader, *, is_code: bool = False) -> CharCoroutine:
    """A call whose first character has come already, alone or in an array, a fence or tags; or tags alone."""
    char, fence, is_wrapped = text.begin, "", False
    if char in "`~":
        fence, is_wrapped = char * 3, True
        yield from text.literal(fence[1:])
        char = yield
        num_chars = 0
        while char in _TAG_CHARS or char == "+":
            num_chars += 1
            if num_chars > MAX_TAG_CHARS:
                raise NotAToolCall
            char = yield
        if char in _SPACE:
            char = yield from text.skip_space()
    elif char not in "{[<":
        return (yield from _line(text, char))
    num_tags = 0
    while char == "<":
        num_tags += 1
        if num_tags > MAX_TAGS:
            raise NotAToolCall
        tag = ""
        while (char := (yield)) in _TAG_CHARS:
            tag += char
            if len(tag) > MAX_NAME_CHARS:
                raise NotAToolCall
        if f"<{tag}{char}" == QWEN.call:
            return (yield from tagged_calls(text, QWEN))
        if f"<{tag}{char}" == "<invoke ":
            yield from text.literal(MINIMAX_TAGS.call.removeprefix("<invoke "))
            return (yield from tagged_calls(text, MINIMAX_TAGS))
        is_tool = text.has_tool(tag) and not is_code
        if is_tool and char == " ":
            return (yield from _element(text, tag, ""))
        if char != ">" or not tag or (len(tag) > MAX_TAG_CHARS and not is_tool):
            raise NotAToolCall
        char, is_wrapped = (yield from text.skip_space()), True
        if is_tool and char == "<":
            return (yield from _element(text, tag, char))
    if char == "[":
        char = yield from text.skip_space()
        if char.isalpha() or char == "_":
            name, char = yield from python_name(char)
            if char == "(" and not is_code:
                return (yield from _list(text, name))
            if char != "]" or not name.isupper():
                raise NotAToolCall
            char = yield from text.skip_space()  # behind a tag in square brackets
            if char == "[":
                char = yield from text.skip_space()
    if is_wrapped and not is_code and (char.isalpha() or char == "_"):
        return (yield from _program(text, char, fence))
    return (yield from _call_object(text, char))


def _element(text: ToolCallReader, name: str, char: str) -> CharCoroutine:
    """An element that is named by a tool, with its arguments as elements or, where `char` is nothing, as attributes.

    The bracket of the first element is `char`.
    """
    text.hold()
    text.start(name)
    text.again(char)
    reader, schema = ElementReader(text, only_known=True), text.schema_of(name)
    yield from reader.arguments(schema, f"</{name}>") if char else reader.attributes(schema, name)
    if not reader.num_arguments:
        raise NotAToolCall
    text.settle()
    return ""


def _line(text: ToolCallReader, char: str) -> CharCoroutine:
    """A call that is a line, in Python, or ReAct's two, of which the first character has come."""
    name, char = yield from python_name(char)
    if name.startswith(ACTION):
        return (yield from _action(text, name.removeprefix(ACTION), char))
    text.hold()
    yield from python_arguments(text, name, char)
    return (yield from _end_of_line(text))


def _action(text: ToolCallReader, name: str, char: str) -> CharCoroutine:
    """A name, whose beginning and the character behind that have come, and an object in the next line."""
    name = (name + (yield from text.until("\n", char))).strip(" \t\r`*")
    if not text.is_known(name):
        raise NotAToolCall
    yield from text.literal(_INPUT, (yield from text.skip_space()))
    char = yield from text.skip_space()
    if char == "`":
        yield from text.literal("```", char)
        yield from text.until("\n")
        char = yield from text.skip_space()
    if char != "{":
        raise NotAToolCall
    text.start(name)
    return (yield from text.arguments(char))


def _list(text: ToolCallReader, name: str) -> CharCoroutine:
    """`name(…), name(…)]`, of which the first name and its bracket have come."""
    text.hold()
    yield from python_arguments(text, name, "(")
    char = yield from text.skip_space()
    if char == ",":
        char = yield from text.skip_space()
        if char != "]":
            yield from python_calls(text, char)
    elif char != "]":
        raise NotAToolCall
    return (yield from _end_of_line(text))


def _program(text: ToolCallReader, char: str, fence: str) -> CharCoroutine:
    """Lines of calls in Python, up to the end of their fence or a tag, and nothing else."""
    text.hold()
    while True:
        yield from python_call(text, char, may_print=True)
        try:
            char = yield from text.skip_space()
            if char in ",;":
                char = yield from text.skip_space()
        except TextEnded:
            text.settle()
            return ""
        if fence and char == fence[0]:
            yield from text.literal(fence, char)
            text.settle()
            return ""
        if char == "<" and not fence:
            text.settle()
            raise NotAToolCall  # what follows the calls is none


def _end_of_line(text: ToolCallReader) -> CharCoroutine:
    """What may stand behind calls in Python that are certain with it: nothing, or what closes or separates them."""
    try:
        while (char := (yield)) in " \t":
            pass
    except TextEnded:
        text.settle()
        return ""
    if char in "\r\n;,":
        text.settle()
        return ""
    if char in "<`~":
        text.settle()
    raise NotAToolCall


def _call_object(text: ToolCallReader, char: str, *, is_inner: bool = False) -> CharCoroutine:
    """The object of a call, from its brace, which is `char`. The call starts when its arguments are seen to be one."""
    if char != "{":
        raise NotAToolCall
    name = early = ""
    char = yield from text.skip_space()
    if char == "{" and not is_inner:  # doubled; the second closing brace is left out behind the call
        char = yield from text.skip_space()
    while char != "}":
        key = yield from text.string(char)
        yield from text.literal(":", (yield from text.skip_space()))
        char = yield from text.skip_space()
        if text.has_started:
            _, char = yield from text.value(char)
        elif key in NAME_KEYS and not name and char in CLOSING_QUOTES:
            name = yield from text.string(char)
            if not text.is_known(name):
                raise NotAToolCall
            if early:
                text.start(name)
                text.emit(early)
                text.end()
            char = yield from text.skip_space()
        elif key in ARGUMENT_KEYS and name and char == "{":
            text.start(name)
            yield from text.arguments(char)
            char = yield from text.skip_space()
        elif (
            key in ARGUMENT_KEYS and (char == "{" or char in CLOSING_QUOTES) and not early
        ):  # before the name, or as the text of an object
            early, char = yield from text.value(char)
            early = text.as_object(early)
            if name:
                text.start(name)
                text.emit(early)
                text.end()
        elif key == "function" and char == "{" and not (name or early or is_inner):  # as OpenAI's API writes calls
            yield from _call_object(text, char, is_inner=True)
            char = yield from text.skip_space()
        elif key in _OTHER_KEYS and char not in "{[":
            _, char = yield from text.value(char)
        else:
            raise NotAToolCall
        if char == ",":
            char = yield from text.skip_space()
        elif char != "}":
            raise NotAToolCall
    if not text.has_started:
        raise NotAToolCall
    return ""
