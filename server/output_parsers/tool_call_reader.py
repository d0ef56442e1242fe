"""Reads tool calls character by character with coroutines, which can be suspended at any character of the text."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from server.output_parsers.parser_events import ToolCallArguments, ToolCallStart, ToolEvent

MAX_NAME_CHARS = 256
_SPACE = " \t\r\n"
_ARGUMENT_KEYS = ("arguments", "parameters")  # Llama's name for them is the second


class NotAToolCall(ValueError):
    """The text cannot become a call any more."""


# Takes characters one by one. What it returns is the first character that is not its own, or the value it has read.
CharCoroutine: TypeAlias = Generator[None, str, str]


class _Nesting:
    """Tracks whether a position in JSON text is within brackets or a string."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def feed(self, char: str) -> None:
        if self._in_string:
            self._in_string = self._is_escaped or char != '"'
            self._is_escaped = char == "\\" and not self._is_escaped
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1

    @property
    def is_outside(self) -> bool:
        """Whether every bracket and string has been closed."""
        return self._depth == 0 and not self._in_string


class ToolCallReader:
    """Reads the text of one or several calls: characters go in, events come out.

    Args:
        body: the coroutine that parses all of it, by the other methods of this class.
        begin: the marker that has come already.
        schemas: of the arguments of each tool, by its name.
        only_known: whether the name of another tool means that the text is no call.
    """

    def __init__(
        self,
        body: Callable[[ToolCallReader], CharCoroutine],
        begin: str = "",
        schemas: Mapping[str, Any] = MappingProxyType({}),
        *,
        only_known: bool = False,
    ) -> None:
        self.begin = begin
        self._schemas = schemas
        self._only_known = only_known
        self.has_started = False  # a call's name has been emitted
        self.is_done = False
        self._events: list[ToolEvent] = []
        self._reading = body(self)
        next(self._reading)

    def feed(self, char: str) -> list[ToolEvent]:
        """Reads one more character. Not called after the end.

        Raises NotAToolCall if the text cannot become a call any more; events that were emitted stay.
        """
        try:
            self._reading.send(char)
        except StopIteration:
            self.is_done = True
        events, self._events = self._events, []
        return events

    # ------------------------------------------------------------------------ what bodies are made of

    def literal(self, text: str, char: str = "") -> CharCoroutine:
        """Exactly `text`, of which `char` has come already. Returns nothing."""
        for expected in text:
            if (char or (yield)) != expected:
                raise NotAToolCall
            char = ""
        return ""

    def skip_space(self) -> CharCoroutine:
        """The first character that is not white space."""
        while (char := (yield)) in _SPACE:
            pass
        return char

    def call_object(self, char: str) -> CharCoroutine:
        """`{"name": …, "arguments": {…}}` in any order, from its brace, which is `char`, to its closing brace."""
        if char != "{":
            raise NotAToolCall
        name, early = "", "{}"  # arguments that came before the name
        has_arguments = False
        char = yield from self.skip_space()
        while char != "}":
            key = yield from self._string(char)
            yield from self.literal(":", (yield from self.skip_space()))
            char = yield from self.skip_space()
            if key == "name":
                if name:
                    raise NotAToolCall
                name = yield from self._string(char)
                self.start(name)
                char = yield from self.skip_space()
            elif key in _ARGUMENT_KEYS and char == "{" and name and not has_arguments:
                has_arguments = True
                yield from self.arguments(char)
                char = yield from self.skip_space()
            else:
                value, char = yield from self._value(char)
                if key in _ARGUMENT_KEYS:
                    early = value
            if char == ",":
                char = yield from self.skip_space()
            elif char != "}":
                raise NotAToolCall
        if not name:
            raise NotAToolCall
        if not has_arguments:
            self._events.append(ToolCallArguments(_as_object(early)))
        return ""

    def call_objects(self, char: str) -> CharCoroutine:
        """`[{…}, {…}]`, from its bracket, which is `char`, to its closing bracket."""
        if char != "[":
            raise NotAToolCall
        return (yield from self.more_objects((yield from self.skip_space())))

    def more_objects(self, char: str) -> CharCoroutine:
        """What follows the bracket of `call_objects`."""
        while char != "]":
            yield from self.call_object(char)
            char = yield from self.skip_space()
            if char == ",":
                char = yield from self.skip_space()
            elif char != "]":
                raise NotAToolCall
        return ""

    def start(self, name: str) -> None:
        """Emits the start of a call."""
        if not name or (self._only_known and name not in self._schemas):
            raise NotAToolCall
        self.has_started = True
        self._events.append(ToolCallStart(name))

    def emit(self, text: str) -> None:
        """Emits more of the last call's arguments."""
        if text:
            self._events.append(ToolCallArguments(text))

    def schema_of(self, name: str) -> Any:
        return self._schemas.get(name)

    def arguments(self, char: str) -> CharCoroutine:
        """An object, emitted as it comes."""
        if char != "{":
            raise NotAToolCall
        nesting = _Nesting()
        while True:
            self._events.append(ToolCallArguments(char))
            nesting.feed(char)
            if nesting.is_outside:
                return ""
            char = yield

    def _string(self, char: str) -> CharCoroutine:
        """A short string from its quote, which is `char`, to its closing quote; decoded."""
        if char != '"':
            raise NotAToolCall
        text, is_escaped = [char], False
        while True:
            char = yield
            text.append(char)
            if char == '"' and not is_escaped:
                break
            is_escaped = char == "\\" and not is_escaped
            if len(text) > MAX_NAME_CHARS:
                raise NotAToolCall
        try:
            return str(json.loads("".join(text), strict=False))
        except ValueError as error:
            raise NotAToolCall from error

    def _value(self, char: str) -> Generator[None, str, tuple[str, str]]:
        """Any value, undecoded, and the first character after it that is not white space."""
        text, nesting = [char], _Nesting()
        while True:
            nesting.feed(char)
            char = yield
            if nesting.is_outside and (char in ",}" or char in _SPACE):
                break
            text.append(char)
        if char in _SPACE:
            char = yield from self.skip_space()
        return "".join(text), char


def _as_object(value: str) -> str:
    """Arguments as JSON text of an object. Some models write that text as a string, or nothing as null.

    Raises NotAToolCall if they are no object.
    """
    try:
        read = json.loads(value, strict=False)
        if isinstance(read, str):
            value, read = read, json.loads(read)
    except ValueError as error:
        raise NotAToolCall from error
    if read is None:
        return "{}"
    if not isinstance(read, dict):
        raise NotAToolCall
    return value
