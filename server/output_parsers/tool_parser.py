"""The syntaxes of tool calls in models' chat templates and cards, and the parser that splits them from other text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from server.output_parsers import tool_call_formats
from server.output_parsers.parser_events import ContentDelta, ToolEvent, merged
from server.output_parsers.reasoning_parser import overlap
from server.output_parsers.tool_call_reader import CharCoroutine, NotAToolCall, ToolCallReader

if TYPE_CHECKING:  # the settings know the names here, and `eagre serve --help` shall not wait for templates
    from server.text.chat_template import ChatTemplate


NATIVE = "native"  # the name by which the flag takes no syntax but that of the model's template


class ToolCallSyntax(NamedTuple):
    """How one family of models writes its calls."""

    name: str  # as the flag names it
    begins: tuple[str, ...]  # any of them begins a call, or several
    body: Callable[[ToolCallReader], CharCoroutine]  # what follows it
    only_first: bool = False  # whether calls can only be the whole of an answer, from its first character on
    template_marks: tuple[str, ...] = ()  # texts by any of which a chat template of such a model is known
    other_markers: tuple[str, ...] = ()  # within a call
    # Whether other text may look like a call, so that only the names of tools that there are make one.
    is_ambiguous: bool = False

    @property
    def strays(self) -> tuple[str, ...]:
        """Markers that belong to a call wherever they stand, and so are never shown."""
        return tuple(marker for marker in self.other_markers if marker.startswith(("</", "<\uff5c")))

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers that may be control tokens of the model, which other outputs do not show."""
        return (*self.begins, *self.other_markers)


_TAGS = ("</tool_call>",)
HERMES = ToolCallSyntax("hermes", ("<tool_call>",), tool_call_formats.hermes, False, ("<tool_call>",), _TAGS)
MISTRAL = ToolCallSyntax(
    "mistral", ("[TOOL_CALLS]",), tool_call_formats.mistral, False, ("[TOOL_CALLS]",), ("[ARGS]", "[CALL_ID]")
)
LLAMA = ToolCallSyntax(
    "llama3_json", ("{", "<|python_tag|>"), tool_call_formats.llama, True,
    ('"parameters": dictionary of argument name',), is_ambiguous=True,
)  # fmt: skip
PYTHONIC = ToolCallSyntax(
    "pythonic", ("[", "<|python_start|>"), tool_call_formats.pythonic, True,
    ("[func_name1(params_name1", "<|python_start|>"), is_ambiguous=True,
)  # fmt: skip
GEMMA = ToolCallSyntax(
    "gemma", ("```tool_code", "```json"), tool_call_formats.gemma, False, ("```tool_code",), is_ambiguous=True
)
DEEPSEEK = ToolCallSyntax(
    "deepseek_v3", ("<\uff5ctool\u2581calls\u2581begin\uff5c>",), tool_call_formats.deepseek, False,
    ("<\uff5ctool\u2581calls\u2581begin\uff5c>",), tool_call_formats.DEEPSEEK_MARKERS,
)  # fmt: skip
QWEN_CODER = ToolCallSyntax(
    "qwen3_coder",
    ("<tool_call>", "<function="),
    tool_call_formats.qwen_coder,
    False,
    ("<parameter=", "<tool_call>\n<function="),
    _TAGS,
)
FUNCTIONARY = ToolCallSyntax(
    "functionary_v3", ("<function=",), tool_call_formats.xml_call, False, ("<function=",), ("</function>",)
)
GRANITE = ToolCallSyntax(
    "granite", ("<|tool_call|>", "<tool_call>"), tool_call_formats.granite, False, ("<|tool_call|>",), _TAGS
)
PHI = ToolCallSyntax(
    "phi4_mini_json", ("functools", "<|tool_call|>"), tool_call_formats.phi, False, ("<|tool|>", "functools["),
)  # fmt: skip
ARRAY = ToolCallSyntax("json", ("[",), tool_call_formats.array, only_first=True)  # what forced calls are written in

# The order matters for templates: several families have tags of others, too.
TOOL_CALL_SYNTAXES: tuple[ToolCallSyntax, ...] = (
    DEEPSEEK,
    QWEN_CODER,
    FUNCTIONARY,
    PHI,
    GRANITE,
    HERMES,
    MISTRAL,
    LLAMA,
    PYTHONIC,
    GEMMA,
)


def syntax_of_template(source: str) -> ToolCallSyntax | None:
    """The syntax that a chat template shows; None where it shows none that is known."""
    return next(
        (syntax for syntax in TOOL_CALL_SYNTAXES if any(mark in source for mark in syntax.template_marks)), None
    )


def choose_tool_call_syntax(name: str | None, chat_template: ChatTemplate | None) -> ToolCallSyntax | None:
    """The syntax with this name, or else that of the model's template; None where neither is known."""
    if name is not None and name != NATIVE:
        return next(syntax for syntax in TOOL_CALL_SYNTAXES if syntax.name == name)
    return None if chat_template is None else syntax_of_template(chat_template.source)


class ToolParser:
    """Splits the tool calls of one output from its other text: text goes in, in pieces of any size, events come out."""

    def __init__(self, syntax: ToolCallSyntax, schemas: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._syntax = syntax
        self._schemas = schemas
        self._held = ""  # may still become the beginning of a call
        self._call: ToolCallReader | None = None
        self._raw: list[str] = []  # of the call that is being read, while its name is not known
        self._is_at_start = True
        self._is_plain = False  # no call can come any more
        self._follows_call = False  # white space behind a call is part of the syntax
        self.has_cut_call = False  # a call has ended before its arguments

    def feed(self, text: str) -> Sequence[ToolEvent]:
        """The events that have become certain with `text`."""
        events: list[ToolEvent] = []
        rest = text
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
            self._emit(self._held, events)
        self._held, self._call = "", None
        return merged(events)

    def _outside(self, text: str, events: list[ToolEvent]) -> str:
        """Takes text up to the beginning of a call; returns what follows it."""
        begins = self._syntax.begins
        text, self._held = self._held + text, ""
        if self._is_plain:
            self._emit(text, events)
            return ""
        if self._syntax.only_first:
            stripped = text.lstrip()
            found = next((begin for begin in begins if stripped.startswith(begin)), None)
            if found is None:
                if any(begin.startswith(stripped) for begin in begins):
                    self._held = text
                    return ""
                if self._follows_call and stripped.startswith((";", ",")):
                    return stripped[1:]  # separates calls
                self._is_plain = True
                self._emit(text, events)
                return ""
            start = len(text) - len(stripped)
        else:
            start, found = min(((text.find(begin), begin) for begin in begins if begin in text), default=(-1, ""))
            if start < 0:
                num_held = max(overlap(text, begin) for begin in begins)
                self._held = text[len(text) - num_held :]
                self._emit(text[: len(text) - num_held], events)
                return ""
            self._emit(text[:start], events)
        self._call = ToolCallReader(
            self._syntax.body, found, self._schemas, only_known=self._syntax.is_ambiguous and bool(self._schemas)
        )
        self._raw = [text[:start] if self._syntax.only_first else "", found]
        return text[start + len(found) :]

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
                    return text[position:]
                self._is_plain = self._syntax.only_first
                self._emit("".join(self._raw), events)
                return text[position:]
            if not call.has_started:
                self._raw.append(char)
            if call.is_done:
                self._call, self._follows_call = None, True
                return text[position + 1 :]
        return ""

    def _emit(self, text: str, events: list[ToolEvent]) -> None:
        if self._follows_call:
            text = text.lstrip()
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
