"""Finds the calls at the end of a reasoning behind which an output has nothing: some models call while they think."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.markers import overlap
from server.output_parsers.reading.parser_events import ContentDelta, ParserEvent, ReasoningDelta, ToolCallStart
from server.output_parsers.tool_parser import StrayMarkers, ToolParser


class CallsInReasoning:
    """Splits such calls from the reasoning of one output: its text goes in, in pieces of any size, events come out.

    A text from a call's marker on is held back until the reasoning goes on or content comes, which shows that it is
    reasoning too, or the output ends.
    """

    def __init__(self, syntax: ToolCallSyntax, schemas: Mapping[str, Any]) -> None:
        self._syntax = syntax
        self._schemas = schemas
        self._held: list[str] = []  # pieces that may be a call, with the white space before it
        self._begin = ""  # what may become a call's marker, behind these
        self._calls: ToolParser | None = None  # of what is held, from the marker on
        self._strays = StrayMarkers(syntax.strays)
        self._events: list[ParserEvent] = []  # of these calls

    def feed(self, text: str) -> Sequence[ReasoningDelta]:
        """The reasoning that has become certain with `text`."""
        certain = ""
        while text:
            more, text = self._outside(text) if self._calls is None else self._inside(text, self._calls)
            certain += more
        return (ReasoningDelta(certain),) if certain else ()

    def release(self) -> Sequence[ReasoningDelta]:
        """What was held back, where something follows the reasoning."""
        held = "".join((*self._held, self._begin))
        self._held, self._begin, self._calls, self._events = [], "", None, []
        return (ReasoningDelta(held),) if held else ()

    def flush(self) -> Sequence[ParserEvent]:
        """What was held back, once no more text can come: whole calls of tools that there are, or reasoning."""
        if self._calls is None:
            return self.release()
        ended = self._calls.flush(drops_markup=True)
        events = [event for event in (*self._events, *ended) if not isinstance(event, ContentDelta)]
        names = [event.name for event in events if isinstance(event, ToolCallStart)]
        if not names or self._calls.has_cut_call or not all(name in self._schemas for name in names):
            return self.release()
        self.release()
        return events

    def _outside(self, text: str) -> tuple[str, str]:
        """What of `text`, and of what was held, is reasoning; and what follows a marker."""
        text, self._begin = self._begin + text, ""
        begins = self._syntax.all_begins
        start, begin = min(((text.find(begin), begin) for begin in begins if begin in text), default=(-1, ""))
        end = len(text) - max(overlap(text, each) for each in begins) if start < 0 else start
        certain = text[:end].rstrip()
        space = text[len(certain) : end]
        if certain:
            before, self._held = self._held, []
            certain = "".join((*before, certain))
        self._held.append(space)
        if start < 0:
            self._begin = text[end:]
            return certain, ""
        behind = start + len(begin)
        self._held.append(begin)
        self._calls, self._events = ToolParser(self._syntax, self._schemas), []
        self._strays = StrayMarkers(self._syntax.strays)
        self._calls.feed(begin)
        return certain, text[behind:]

    def _inside(self, text: str, calls: ToolParser) -> tuple[str, str]:
        """Reads on in a call; what shows that it is reasoning after all, with what was held, and what follows that."""
        for at, char in enumerate(text, start=1):
            self._held.append(char)
            found = calls.feed(char)
            self._events += found
            texts = [self._strays.feed(event.text) for event in found if isinstance(event, ContentDelta)]
            if any(texts):
                return "".join(event.text for event in self.release()), text[at:]
        return "", ""
