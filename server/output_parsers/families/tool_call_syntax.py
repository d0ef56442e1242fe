"""The record of one family's syntax of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from server.output_parsers.reading.tool_call_reader import CharCoroutine, ToolCallReader


class ToolCallSyntax(NamedTuple):
    """How one family of models writes its calls."""

    name: str  # as the flag names it
    begins: tuple[str, ...]  # any of them begins a call, or several
    body: Callable[[ToolCallReader], CharCoroutine]  # what follows it
    only_first: bool = False  # whether calls can only be the whole of an answer, from its first character on
    template_marks: tuple[str, ...] = ()  # texts by any of which a chat template of such a model is known
    other_markers: tuple[str, ...] = ()  # within a call, or around other text
    # What begins a call where a model has forgotten the marker before it. Grammars do not wait for these.
    inner_begins: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()  # markers that are syntax wherever they stand, and so are never shown
    # Whether other text may look like a call, so that only the names of tools that there are make one.
    is_ambiguous: bool = False
    # Whether the markers stand around other text too, so that outputs are parsed where no tools are offered as well.
    frames_text: bool = False
    is_open: bool = False  # whether outputs begin within what `body` reads, because the prompt has begun it

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers that may be control tokens of the model, which other outputs do not show."""
        return tuple(dict.fromkeys((*self.begins, *self.other_markers, *self.inner_begins)))

    @property
    def all_begins(self) -> tuple[str, ...]:
        return (*self.begins, *self.inner_begins)
