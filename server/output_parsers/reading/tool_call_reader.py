"""Reads tool calls character by character with coroutines, which can be suspended at any character of the text."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

from server.output_parsers.reading.json_repair import CLOSING_QUOTES, JsonRepair, NotJson, repaired
from server.output_parsers.reading.markers import overlap
from server.output_parsers.reading.parser_events import ReasoningDelta, ToolCallArguments, ToolCallStart, ToolEvent

MAX_NAME_CHARS = 256
_SPACE = " \t\r\n"
# The first of each is what nearly all use; the second are Cohere's and Llama's, the last LangChain's.
NAME_KEYS = ("name", "tool_name", "function", "tool", "action")
ARGUMENT_KEYS = ("arguments", "parameters", "args", "params", "input", "action_input")
NAMESPACES = ("functions.", "default_api.")  # that models put before names


class NotAToolCall(ValueError):
    """The text cannot become a call any more."""


class TextEnded(Exception):
    """No more text can come."""


# Takes characters one by one. What it returns is the first character that is not its own, or the value it has read.
CharCoroutine: TypeAlias = Generator[None, str, str]


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
        self.has_started = False  # something has been emitted, mostly a call's name
        self.has_open_call = False  # the arguments of the last call have not come to their end
        self.is_done = False
        self._events: list[ToolEvent] = []
        self._tentative: list[ToolEvent] | None = None  # events that are withheld until the text is known to be calls
        self._repair: JsonRepair | None = None  # of the value that is being emitted
        self._char = ""  # the last one
        self._again: deque[str] = deque()  # characters that are read once more
        self._behind: list[str] | None = None  # characters behind the last call, while no other one has started
        self._unused: list[str] = []  # characters of an open call behind the last that something was emitted of
        self._has_emitted = False
        self._reading = body(self)
        next(self._reading)

    def feed(self, char: str) -> list[ToolEvent]:
        """Reads one more character. Not called after the end.

        Raises NotAToolCall if the text cannot become a call any more; events that were emitted stay.
        """
        self._send(char)
        while self._again and not self.is_done:
            self._send(self._again.popleft())
        events, self._events = self._events, []
        return events

    def _send(self, char: str) -> None:
        self._char, behind = char, self._behind
        self._has_emitted = False
        try:
            self._reading.send(char)
        except StopIteration:
            self.is_done = True
        except NotAToolCall:
            self._again.appendleft(char)
            raise
        if behind is not None and behind is self._behind:
            behind.append(char)
        if self._has_emitted:
            self._unused.clear()
        elif self.has_open_call:
            self._unused.append(char)

    @property
    def unread(self) -> str:
        """What has come behind the last call and is no part of any, once the reading has ended or failed."""
        if self.has_open_call and self._repair is None:
            return "".join((*self._unused, *self._again)).lstrip()
        return "".join((*(() if self.is_done else self._behind or ()), *self._again))

    def flush(self) -> list[ToolEvent]:
        """The events of the end of the text: mostly what was held back of the arguments of a call that is cut off."""
        with suppress(StopIteration, TextEnded, NotAToolCall):
            self._reading.throw(TextEnded())
        events, self._events = self._events, []
        pending = "" if self._repair is None else self._repair.pending
        return [*events, ToolCallArguments(pending)] if pending else events

    # ------------------------------------------------------------------------ what bodies are made of

    def literal(self, text: str, char: str = "") -> CharCoroutine:
        """Exactly `text`, of which `char` has come already. Returns nothing."""
        for expected in text:
            if (char or (yield)) != expected:
                raise NotAToolCall
            char = ""
        return ""

    def one_of(self, texts: Sequence[str], char: str = "") -> CharCoroutine:
        """Exactly one of `texts`, of which `char` has come already; returns it. No text begins another one."""
        seen = char
        while seen not in texts:
            if not any(text.startswith(seen) for text in texts):
                raise NotAToolCall
            seen += yield
        return seen

    def until(self, end: str, char: str = "") -> CharCoroutine:
        """A short text up to the character `end`, which is left out; `char` has come already."""
        text = ""
        char = char or (yield)
        while char != end:
            text += char
            if len(text) > MAX_NAME_CHARS:
                raise NotAToolCall
            char = yield
        return text

    def quoted(self, ends: Sequence[str], char: str = "") -> CharCoroutine:
        """Any text up to one of `ends`, of which `char` has come already; it is emitted as a string while it comes.

        An end that another one ends with stands behind it.
        """
        self.emit('"')
        held = char or (yield)
        while True:
            end = next((end for end in ends if held.endswith(end)), None)
            num_held = max(overlap(held, end) for end in ends) if end is None else len(end)
            sure, held = held[: len(held) - num_held], held[len(held) - num_held :]
            self.emit(json.dumps(sure, ensure_ascii=False)[1:-1])
            if end is not None:
                break
            held += yield
        self.emit('"')
        return ""

    def again(self, text: str) -> None:
        """Reads the last characters, which are `text`, once more. Only within the arguments of a call."""
        self._again.extendleft(reversed(text))

    def skip_space(self) -> CharCoroutine:
        """The first character that is not white space."""
        while (char := (yield)) in _SPACE:
            pass
        return char

    def call_object(self, char: str) -> CharCoroutine:
        """`{"name": …, "arguments": {…}}` in any order, from its brace, which is `char`, to its closing brace.

        Its own braces may be doubled, as templates that were written for Python's `format` show them.
        """
        if char != "{":
            raise NotAToolCall
        name, early = "", "{}"  # arguments that came before the name
        has_arguments = False
        char = yield from self.skip_space()
        is_doubled = char == "{"
        if is_doubled:
            char = yield from self.skip_space()
        while char != "}":
            key = yield from self.string(char)
            yield from self.literal(":", (yield from self.skip_space()))
            char = yield from self.skip_space()
            if key in NAME_KEYS and char in CLOSING_QUOTES and not name:
                name = yield from self.string(char)
                self.start(name)
                char = yield from self.skip_space()
            elif not name and key not in ARGUMENT_KEYS and char == "{" and self.is_known(key):  # it stands for both
                name, has_arguments = key, True
                self.start(name)
                yield from self.arguments(char)
                char = yield from self.skip_space()
            elif key in ARGUMENT_KEYS and char == "{" and name and not has_arguments:
                has_arguments = True
                yield from self.arguments(char)
                char = yield from self.skip_space()
            else:
                value, char = yield from self.value(char)
                if key in ARGUMENT_KEYS:
                    early = value
            if char == ",":
                char = yield from self.skip_space()
            elif char != "}":
                raise NotAToolCall
        if not name:
            raise NotAToolCall
        if not has_arguments:
            self.emit(self.as_object(early))
            self.end()
        return (yield from self.literal("}", (yield from self.skip_space()))) if is_doubled else ""

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

    def start(self, name: str, call_id: str = "") -> None:
        """Emits the start of a call."""
        name = self.offered_name(name)
        if not name or (self._only_known and name not in self._schemas):
            raise NotAToolCall
        if self._tentative is not None:
            self._tentative.append(ToolCallStart(name, call_id))
            return
        self.has_started = self.has_open_call = True
        self._behind = None
        self._events.append(ToolCallStart(name, call_id))

    def hold(self) -> None:
        """Withholds events from here on, until `settle`: where only the end shows whether the text is a call."""
        self._tentative = []

    def settle(self) -> None:
        """Emits what was withheld, which is whole calls."""
        held, self._tentative = self._tentative or [], None
        if held:
            self._events += held
            self.has_started, self.has_open_call, self._behind = True, False, []

    def only_if_started(self) -> str:
        """Nothing. Raises NotAToolCall where no call has come: markers alone are text."""
        if not self.has_started:
            raise NotAToolCall
        return ""

    def end(self, seen: str = "") -> None:
        """Marks the last call's arguments as complete; `seen` has been read behind them already."""
        if self._tentative is None:
            self.has_open_call = False
            self._behind = [seen] if seen else []

    def is_known(self, name: str) -> bool:
        """Whether a tool has this name."""
        return self.offered_name(name) in self._schemas

    def has_tool(self, name: str) -> bool:
        """Whether a tool has exactly this name."""
        return name in self._schemas

    def begins_name(self, text: str) -> bool:
        """Whether the name of a tool begins with `text`."""
        return any(name.startswith(text) for name in self._schemas)

    def offered_name(self, name: str) -> str:
        """The name of the one tool that is meant: models write `get.time` for `get_time`, or `functions.get_time`."""
        if name in self._schemas:
            return name
        plain = _plain(name)
        meant = [offered for offered in self._schemas if _plain(offered) == plain]
        return meant[0] if len(meant) == 1 else name

    def split_name(self, text: str) -> tuple[str, str]:
        """The name of the tool that `text` begins with, the longest one, and the rest of the text."""
        names = [name for name in self._schemas if text.startswith(name) and len(name) < len(text)]
        if not names:
            raise NotAToolCall
        name = max(names, key=len)
        return name, text[len(name) :].strip()

    def reason(self, text: str) -> None:
        """Emits reasoning between calls and texts."""
        self.has_started = True
        self._behind = None
        self._events.append(ReasoningDelta(text))

    def emit(self, text: str) -> None:
        """Emits more of the last call's arguments."""
        if text:
            self._has_emitted = True
            (self._events if self._tentative is None else self._tentative).append(ToolCallArguments(text))

    def schema_of(self, name: str) -> Any:
        return self._schemas.get(self.offered_name(name))

    def arguments(self, char: str) -> CharCoroutine:
        """The object of a call's arguments, emitted as it comes, with its JSON repaired."""
        if char != "{":
            raise NotAToolCall
        try:
            yield from self.json_value(char)
        except NotAToolCall:
            # Some models forget the last braces: the tag that closes the call shows that it is whole.
            if self._char == "<" and self._repair is not None and (closers := self._repair.closers):
                self._repair = None
                self.emit(closers)
                self.end()
            raise
        self.end()
        return ""

    def json_value(self, char: str) -> CharCoroutine:
        """An object or an array, emitted as it comes, with its JSON repaired."""
        repair = self._repair = JsonRepair()
        while True:
            try:
                self.emit(repair.feed(char))
            except NotJson as error:
                raise NotAToolCall from error
            if repair.is_done:
                self._repair = None
                return ""
            char = yield

    def string(self, char: str) -> CharCoroutine:
        """A short string from its quote, which is `char` and may be Python's or a typographer's, to its closing one."""
        closing = CLOSING_QUOTES.get(char)
        if closing is None:
            raise NotAToolCall
        quote, text, is_escaped = char, [char], False
        while True:
            char = yield
            text.append(char)
            if char in closing and not is_escaped:
                break
            is_escaped = char == "\\" and not is_escaped
            if len(text) > MAX_NAME_CHARS:
                raise NotAToolCall
        written = "".join(text)
        try:
            return str(json.loads(written if quote == '"' else repaired(written), strict=False))
        except ValueError as error:
            raise NotAToolCall from error

    def value(self, char: str) -> Generator[None, str, tuple[str, str]]:
        """Any value, repaired, and the first character after it that is not white space."""
        repair, written = JsonRepair(), ""
        while True:
            try:
                written += repair.feed(char)
            except NotJson as error:
                raise NotAToolCall from error
            if repair.is_done:
                break
            char = yield
        if written[-1] in '"}]':
            char = yield
        return written, (yield from self.skip_space()) if char in _SPACE else char

    @staticmethod
    def as_object(value: str) -> str:
        """Arguments as JSON text of an object. Some models write that text as a string, or nothing as null, "" or [].

        Raises NotAToolCall if they are no object.
        """
        if value.startswith('"') and value != '""':
            try:
                value = repaired(json.loads(value))
            except (NotJson, ValueError) as error:
                raise NotAToolCall from error
        if value in ("null", '""') or re.fullmatch(r"\[\s*\]", value):
            return "{}"
        if not value.startswith("{"):
            raise NotAToolCall
        return value


@lru_cache(maxsize=1024)
def _plain(name: str) -> str:
    """A name without what models change in it."""
    name = name.strip()
    for namespace in NAMESPACES:
        name = name.removeprefix(namespace)
    return re.sub(r"[^0-9a-z]+", "_", name.lower())
