"""Finds the calls with which an output ends where it has not ended its reasoning: some models forget that marker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.markers import overlap
from server.output_parsers.reading.parser_events import ContentDelta, ParserEvent, ReasoningDelta, ToolCallStart
from server.output_parsers.tool_parser import ToolParser


class CallsInReasoning:
    """Splits such calls from the reasoning of one output: its text goes in, in pieces of any size, events come out.

    A text from a call's marker on is held back until the reasoning goes on, which shows that it is reasoning too, or
    the output ends.
    """

    def __init__(self, syntax: ToolCallSyntax, schemas: Mapping[str, Any]) -> None:
        self._syntax = syntax
        self._schemas = schemas
        self._held = ""  # may be a call, or the beginning of one, with the white space before it
        self._calls: ToolParser | None = None  # of what is held, from the marker on
        self._events: list[ParserEvent] = []  # of these calls

    def feed(self, text: str) -> Sequence[ReasoningDelta]:
        """The reasoning that has become certain with `text`."""
        certain = ""
        while text:
            if self._calls is None:
                more, text = self._outside(text)
                certain += more
            else:
                certain += self._inside(text[0])
                text = text[1:]
        return (ReasoningDelta(certain),) if certain else ()

    def release(self) -> Sequence[ReasoningDelta]:
        """What was held back, where the reasoning has ended as it should."""
        held, self._held, self._calls, self._events = self._held, "", None, []
        return (ReasoningDelta(held),) if held else ()

    def flush(self) -> Sequence[ParserEvent]:
        """What was held back, once no more text can come: whole calls of tools that there are, or reasoning."""
        if self._calls is None:
            return self.release()
        events = [*self._events, *self._calls.flush()]
        names = [event.name for event in events if isinstance(event, ToolCallStart)]
        if not names or self._calls.has_cut_call or not all(name in self._schemas for name in names):
            return self.release()
        self.release()
        return events

    def _outside(self, text: str) -> tuple[str, str]:
        """What of `text`, and of what was held, is reasoning; and what follows a marker."""
        text = self._held + text
        start, begin = min(
            ((text.find(begin), begin) for begin in self._syntax.begins if begin in text), default=(-1, "")
        )
        end = len(text) - max(overlap(text, each) for each in self._syntax.begins) if start < 0 else start
        certain = text[:end].rstrip()
        if start < 0:
            self._held = text[len(certain) :]
            return certain, ""
        behind = start + len(begin)
        self._held = text[len(certain) : behind]
        self._calls, self._events = ToolParser(self._syntax, self._schemas), []
        self._calls.feed(begin)
        return certain, text[behind:]

    def _inside(self, char: str) -> str:
        """Reads one more character of a call; what it shows to be reasoning after all."""
        assert self._calls is not None
        self._held += char
        found = self._calls.feed(char)
        self._events += found
        if not any(isinstance(event, ContentDelta) for event in found):
            return ""
        return "".join(event.text for event in self.release())
