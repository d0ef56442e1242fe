"""Finds calls that a model writes as plain JSON in the place of its own syntax: bare, in a fence, or in tags.

Such a call is an object with the name of a tool that is offered and an object of arguments. It counts at the beginning
or at the end of an answer; JSON in the middle of prose stays text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from server.output_parsers.families.tagged_calls import MINIMAX_TAGS, QWEN, tagged_calls
from server.output_parsers.reading.parser_events import ContentDelta, ToolEvent, merged
from server.output_parsers.reading.tool_call_reader import (
    ARGUMENT_KEYS,
    NAME_KEYS,
    CharCoroutine,
    NotAToolCall,
    ToolCallReader,
)

MAX_TAG_CHARS = 40
_SPACE = " \t\r\n"
_OTHER_KEYS = ("id", "type", "call_id", "index")  # beside a name and arguments; an object with others is something else
_TRIGGER = re.compile(r"[{\[<`]")
_TAG_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-|")
_FENCE = re.compile(r"```[A-Za-z0-9_+-]{0,16}\s*")
_FENCE_END = re.compile("```")
_CLOSER = re.compile(r"</[A-Za-z0-9_|-]{1,40}>|<\|[A-Za-z0-9_]{1,40}\|>")
_PART_OF_CLOSER = re.compile(r"<(?:/[A-Za-z0-9_|-]{0,40}|\|[A-Za-z0-9_]{0,40}\|?)?")


class JsonCallFinder:
    """Splits calls in plain JSON from the text of one answer: text goes in, in pieces of any size, events come out.

    At the beginning of an answer, calls are emitted as they come. Behind text, they are held back until the answer
    ends with them, or goes on and so shows that they are text.

    Args:
        schemas: of the arguments of each tool, by its name.
    """

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._call: ToolCallReader | None = None
        self._raw: list[str] = []  # of the call that is being read, until it is certain
        self._held = ""  # text that may yet belong to the beginning or the end of a call
        self._has_brace = False  # an object may be open around a call
        self._has_text = False  # something other than white space and calls has come
        self._space = ""  # white space at the beginning, which belongs to the text if there is one
        self._follows_call = False
        # Behind text: the events of the calls that the answer may end with, and their text.
        self._waiting: list[ToolEvent] = []
        self._waiting_text: list[str] = []
        self.has_cut_call = False

    def feed(self, text: str) -> Sequence[ToolEvent]:
        """The events that have become certain with `text`."""
        events: list[ToolEvent] = []
        while text:
            text = self._outside(text, events, is_last=False) if self._call is None else self._inside(text, events)
        return merged(events)

    def flush(self) -> Sequence[ToolEvent]:
        """The events of what was held back, once no more text can come."""
        events: list[ToolEvent] = []
        text, self._held = self._held, ""
        while text:
            text = self._outside(text, events, is_last=True) if self._call is None else self._inside(text, events)
        call, self._call = self._call, None
        if call is not None and call.has_started:
            (self._waiting if self._has_text else events).extend(call.flush())
            self.has_cut_call = self.has_cut_call or call.has_open_call
        elif call is not None:
            self._release("".join(self._raw), events)
        events += self._waiting
        self._waiting, self._waiting_text = [], []
        if self._space and not self._follows_call:
            events.append(ContentDelta(self._space))
        self._space = ""
        return merged(events)

    def interrupt(self) -> Sequence[ToolEvent]:
        """`flush` where a call in the model's own syntax comes, behind which the answer may go on."""
        if self._call is not None and not self._call.has_started and "{" not in "".join(self._raw):
            self._call = None  # a wrapper around the other call
        self._space = ""
        events = self.flush()
        self._follows_call, self._has_text = True, False
        return events

    # ------------------------------------------------------------------------ between calls

    def _outside(self, text: str, events: list[ToolEvent], *, is_last: bool) -> str:
        """Takes text up to the beginning of what may be a call; returns what follows it."""
        text, self._held = self._held + text, ""
        if self._follows_call:
            return self._behind_call(text, events, is_last=is_last)
        found = _TRIGGER.search(text)
        if found is None:
            self._emit(text, events)
            return ""
        self._emit(text[: found.start()], events)
        return self._begin(text[found.start() :])

    def _behind_call(self, text: str, events: list[ToolEvent], *, is_last: bool) -> str:
        """Leaves out what closes a call or separates it from the next one."""
        rest = text.lstrip()
        if not rest:
            self._keep(text)
            return ""
        if rest[0] in ",;]" or (rest[0] == "}" and not self._has_brace):  # some models write a brace too many
            self._keep(text[: len(text) - len(rest) + 1])
            return rest[1:]
        closer, fence = _CLOSER.match(rest), _FENCE.match(rest)
        if closer is None and (
            rest in ("`", "``") or _PART_OF_CLOSER.fullmatch(rest) or (fence is not None and fence.end() == len(rest))
        ):  # it may close the call, or open the next one
            if is_last:
                self._keep(text)
            else:
                self._held = text
            return ""
        if fence is not None and rest[fence.end()] not in "{[<":
            closer = _FENCE_END.match(rest)
        if closer is not None:
            self._keep(text[: len(text) - len(rest) + closer.end()])
            return rest[closer.end() :]
        if rest[0] in "{[<`":
            self._keep(text[: len(text) - len(rest)])
            return self._begin(rest)
        self._follows_call = False
        if self._waiting:
            self._release(text[: len(text) - len(rest)], events)
        return rest

    def _begin(self, text: str) -> str:
        self._call = ToolCallReader(_wrapped_call, text[0], self._schemas, only_known=True)
        self._raw = [text[0]]
        return text[1:]

    def _keep(self, text: str) -> None:
        """Text that belongs to calls, unless these turn out to be text themselves."""
        if self._waiting:
            self._waiting_text.append(text)

    # ------------------------------------------------------------------------ within a call

    def _inside(self, text: str, events: list[ToolEvent]) -> str:
        """Takes the text of a call; returns what follows it."""
        call = self._call
        assert call is not None
        for position, char in enumerate(text):
            try:
                found = call.feed(char)
            except NotAToolCall:
                unread = call.unread + text[position + 1 :]
                if call.has_started and not call.has_open_call:  # the call is whole but for what closes it
                    (self._waiting if self._has_text else events).extend(call.flush())
                    del self._raw[max(0, len(self._raw) - len(call.unread) + 1) :]
                    self._end_call()
                    return unread
                stays = call.has_started and not self._has_text  # what was emitted
                return self._end_as_text(call, unread if stays else text[position:], events)
            if self._has_text:
                self._waiting += found
            elif found:
                self._space = ""
                events += found
            if self._has_text or not call.has_started:
                self._raw.append(char)
            if call.is_done:
                self._end_call()
                return text[position + 1 :]
        return ""

    def _end_call(self) -> None:
        if self._has_text:
            self._waiting_text += self._raw
        self._call, self._follows_call = None, True

    def _end_as_text(self, call: ToolCallReader, rest: str, events: list[ToolEvent]) -> str:
        self._call = None
        if call.has_started and not self._has_text:
            events += call.flush()
            self.has_cut_call = self.has_cut_call or call.has_open_call
            self._follows_call = False
            self._has_text = True
            events.append(ContentDelta(rest[:1]))
            return rest[1:]
        raw = "".join(self._raw)
        self._follows_call = False
        if "{" in raw:
            self._release(raw, events)
            return rest
        # What looked like a wrapper is none; a call may begin within it.
        self._release(raw[:1], events)
        return raw[1:] + rest

    def _release(self, text: str, events: list[ToolEvent]) -> None:
        """Emits text, and before it as text the calls that it follows."""
        text = "".join(self._waiting_text) + text
        self._waiting, self._waiting_text = [], []
        self._emit(text, events)

    def _emit(self, text: str, events: list[ToolEvent]) -> None:
        if not text:
            return
        text, self._space = self._space + text, ""
        if not self._has_text and text.isspace():
            self._space = text
            return
        self._has_text = True
        self._has_brace = self._has_brace or "{" in text
        events.append(ContentDelta(text))


def _wrapped_call(text: ToolCallReader) -> CharCoroutine:
    """A call whose first character has come already: an object, bare, in an array, a fence or tags; or tags alone."""
    char = text.begin
    if char == "`":
        yield from text.literal("``")
        char = yield
        num_chars = 0
        while char in _TAG_CHARS or char == "+":
            num_chars += 1
            if num_chars > MAX_TAG_CHARS:
                raise NotAToolCall
            char = yield
        if char in _SPACE:
            char = yield from text.skip_space()
    while char == "<":
        tag = ""
        while (char := (yield)) in _TAG_CHARS:
            tag += char
            if len(tag) > MAX_TAG_CHARS:
                raise NotAToolCall
        if f"<{tag}{char}" == QWEN.call:
            return (yield from tagged_calls(text, QWEN))
        if f"<{tag}{char}" == "<invoke ":
            yield from text.literal(MINIMAX_TAGS.call.removeprefix("<invoke "))
            return (yield from tagged_calls(text, MINIMAX_TAGS))
        if char != ">" or not tag:
            raise NotAToolCall
        char = yield from text.skip_space()
    if char == "[":
        char = yield from text.skip_space()
    return (yield from _call_object(text, char))


def _call_object(text: ToolCallReader, char: str) -> CharCoroutine:
    """The object of a call, from its brace, which is `char`. The call starts when its arguments are seen to be one."""
    if char != "{":
        raise NotAToolCall
    name = early = ""
    char = yield from text.skip_space()
    while char != "}":
        key = yield from text.string(char)
        yield from text.literal(":", (yield from text.skip_space()))
        char = yield from text.skip_space()
        if text.has_started:
            _, char = yield from text.value(char)
        elif key in NAME_KEYS and not name and char in "\"'":
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
        elif key in ARGUMENT_KEYS and char in "{\"'" and not early:  # before the name, or as the text of an object
            early, char = yield from text.value(char)
            early = text.as_object(early)
            if name:
                text.start(name)
                text.emit(early)
                text.end()
        elif key == "function" and char == "{" and not name and not early:  # as OpenAI's API writes calls
            yield from _call_object(text, char)
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
