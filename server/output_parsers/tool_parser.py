"""The parser that splits the calls in one syntax from other text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.markers import overlap
from server.output_parsers.reading.parser_events import ContentDelta, ToolEvent, merged
from server.output_parsers.reading.tool_call_reader import NotAToolCall, ToolCallReader

PIECE = 512  # characters that are taken at once, because what follows a call in them is copied
_BEHIND_CALL = " \t\r\n}]"  # white space, and brackets that some models write once too often


class ToolParser:
    """Splits the tool calls of one output from its other text: text goes in, in pieces of any size, events come out."""

    def __init__(self, syntax: ToolCallSyntax, schemas: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._syntax = syntax
        self._schemas = schemas
        self._held = ""  # may still become the beginning of a call
        self._spaces: list[str] = []  # white space before it, where a call can only be the whole of an answer
        self._call: ToolCallReader | None = None
        self._raw: list[str] = []  # of the call that is being read, while its name is not known
        self._is_plain = False  # no call can come any more
        self._follows_call = False  # what separates calls is part of the syntax
        self.has_cut_call = False  # a call has ended before its arguments
        if syntax.is_open:
            self._begin("")

    def feed(self, text: str) -> Sequence[ToolEvent]:
        """The events that have become certain with `text`."""
        events: list[ToolEvent] = []
        for start in range(0, len(text), PIECE):
            rest = text[start : start + PIECE]
            while rest:
                rest = self._outside(rest, events) if self._call is None else self._inside(rest, events)
        return merged(events)

    def flush(self, *, drops_markup: bool = False) -> Sequence[ToolEvent]:
        """The events of the text that was held back, once no more text can come.

        Args:
            drops_markup: whether a call that is cut off before its name is known is left out, rather than text.
        """
        events: list[ToolEvent] = []
        if self._call is not None and not self._call.has_started:
            if not drops_markup or self._syntax.is_ambiguous:
                events.append(ContentDelta("".join(self._raw)))
        elif self._call is not None:
            events += self._call.flush()
            self.has_cut_call = self.has_cut_call or self._call.has_open_call
        else:
            self._emit("".join((*self._spaces, self._held)), events)
        self._held, self._spaces, self._call = "", [], None
        return merged(events)

    def _outside(self, text: str, events: list[ToolEvent]) -> str:
        """Takes text up to the beginning of a call; returns what follows it."""
        begins = self._syntax.all_begins
        text, self._held = self._held + text, ""
        if self._is_plain:
            self._emit(text, events)
            return ""
        if self._syntax.only_first:
            stripped = text.lstrip()
            self._spaces.append(text[: len(text) - len(stripped)])
            found = next((begin for begin in begins if stripped.startswith(begin)), None)
            if found is None:
                if any(begin.startswith(stripped) for begin in begins):
                    self._held = stripped
                    return ""
                spaces, self._spaces = self._spaces, []
                if self._follows_call and stripped.startswith((";", ",")):
                    return stripped[1:]  # separates calls
                self._is_plain = True
                self._emit("".join((*spaces, stripped)), events)
                return ""
            text, start = stripped, 0
        else:
            start, found = min(((text.find(begin), begin) for begin in begins if begin in text), default=(-1, ""))
            if start < 0:
                num_held = max(overlap(text, begin) for begin in begins)
                self._held = text[len(text) - num_held :]
                self._emit(text[: len(text) - num_held], events)
                return ""
            self._emit(text[:start], events)
        self._begin(found)
        spaces, self._spaces = self._spaces, []
        self._raw = [*spaces, *self._raw]
        return text[start + len(found) :]

    def _begin(self, marker: str) -> None:
        only_known = self._syntax.is_ambiguous and bool(self._schemas)
        self._call = ToolCallReader(self._syntax.body, marker, self._schemas, only_known=only_known)
        self._raw = [marker]

    def _inside(self, text: str, events: list[ToolEvent]) -> str:
        """Takes the text of a call; returns what follows it."""
        call = self._call
        assert call is not None
        for position, char in enumerate(text):
            try:
                events += call.feed(char)
            except NotAToolCall:
                self._call = None
                if call.has_started:  # what was emitted stays; the rest is text like any other
                    events += call.flush()
                    self.has_cut_call = self.has_cut_call or call.has_open_call
                    self._follows_call = not call.has_open_call
                    return call.unread + text[position + 1 :]
                self._is_plain = self._syntax.only_first
                self._emit("".join(self._raw), events)
                return text[position:]
            if not call.has_started:
                self._raw.append(char)
            if call.is_done:
                self._call = None
                self._follows_call = call.has_started or not self._syntax.frames_text
                return call.unread + text[position + 1 :]
        return ""

    def _emit(self, text: str, events: list[ToolEvent]) -> None:
        if self._follows_call:
            text = text.lstrip(_BEHIND_CALL)
        if text:
            self._follows_call = False
            events.append(ContentDelta(text))


class StrayMarkers:
    """Leaves markers out of a text that stand outside of calls, such as an end without its beginning."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = markers
        self._held = ""  # may still become a marker

    def feed(self, text: str) -> str:
        """What is certain not to be part of a marker."""
        text, self._held = self._held + text, ""
        for marker in self._markers:
            text = text.replace(marker, "")
        num_held = max((overlap(text, marker) for marker in self._markers), default=0)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def flush(self) -> str:
        """The text that was held back, once no more text can come."""
        text, self._held = self._held, ""
        return text
