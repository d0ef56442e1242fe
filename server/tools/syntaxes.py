"""The syntaxes in which models write tool calls, and the readers of answers that may hold some.

The markers are those which the models' own chat templates show: Hermes and Qwen (NousResearch, Qwen2.5 and 3),
Llama 3.1 to 3.3, Mistral.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from server.text.chat_template import ChatTemplate
from server.tools.call_events import CallEvent, CallReader, Content, merged
from server.tools.call_text import CallText, NotACall, Reading
from server.tools.reasoning import overlap


class Syntax(NamedTuple):
    """How one family of models writes its calls."""

    name: str  # as the flag names it
    begin: str  # what begins a call, or several
    body: Callable[[CallText], Reading]  # what follows it
    only_first: bool = False  # whether calls can only be the whole of an answer, from its first character on
    template_mark: str = ""  # a text by which a chat template of such a model is known


def _hermes(text: CallText) -> Reading:
    yield from text.call_object((yield from text.skip_space()))
    return (yield from text.literal("</tool_call>", (yield from text.skip_space())))


def _mistral(text: CallText) -> Reading:
    """An array of calls; newer models write `name[ARGS]{…}` for each."""
    char = yield from text.skip_space()
    if char == "[":
        return (yield from text.call_objects(char))
    name = ""
    while char != "[":
        name += char
        if len(name) > 256:
            raise NotACall
        char = yield
    yield from text.literal("[ARGS]", char)
    text.start(name)
    return (yield from text.arguments((yield from text.skip_space())))


def _llama(text: CallText) -> Reading:
    """The brace has come already."""
    return (yield from text.call_object("{"))


def _array(text: CallText) -> Reading:
    """The bracket has come already."""
    return (yield from text.call_objects("["))


HERMES = Syntax("hermes", "<tool_call>", _hermes, template_mark="<tool_call>")
MISTRAL = Syntax("mistral", "[TOOL_CALLS]", _mistral, template_mark="[TOOL_CALLS]")
LLAMA = Syntax("llama3_json", "{", _llama, only_first=True, template_mark='"parameters": dictionary of argument name')
ARRAY = Syntax("json", "[", _array, only_first=True)  # what forced calls are written in

SYNTAXES: tuple[Syntax, ...] = (HERMES, MISTRAL, LLAMA)


def syntax_of_template(source: str) -> Syntax | None:
    """The syntax of the model that a chat template belongs to; None where the template shows none that is known."""
    return next((syntax for syntax in SYNTAXES if syntax.template_mark in source), None)


def choose_syntax(name: str | None, chat_template: ChatTemplate | None) -> Syntax | None:
    """The syntax of a name, or without a name that which the model's template shows; None where neither is known."""
    if name is not None:
        return next(syntax for syntax in SYNTAXES if syntax.name == name)
    return None if chat_template is None else syntax_of_template(chat_template.source)


class SyntaxReader(CallReader):
    """Tells the calls of one answer from its other text."""

    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax
        self._held = ""  # may still become the beginning of a call
        self._call: CallText | None = None
        self._raw: list[str] = []  # of the call that is being read, while its name is not known
        self._is_at_start = True
        self._is_plain = False  # no call can come any more
        self._follows_call = False  # white space behind a call is part of the syntax

    def feed(self, text: str) -> Sequence[CallEvent]:
        events: list[CallEvent] = []
        rest = text
        while rest:
            rest = self._outside(rest, events) if self._call is None else self._inside(rest, events)
        return merged(events)

    def flush(self) -> Sequence[CallEvent]:
        events: list[CallEvent] = []
        if self._call is not None and not self._call.has_started:
            events.append(Content("".join(self._raw)))
        elif self._call is None:
            self._tell(self._held, events)
        self._held, self._call = "", None
        return merged(events)

    def _outside(self, text: str, events: list[CallEvent]) -> str:
        """Takes text up to the beginning of a call; returns what follows it."""
        begin = self._syntax.begin
        text, self._held = self._held + text, ""
        if self._is_plain:
            self._tell(text, events)
            return ""
        if self._syntax.only_first:
            stripped = text.lstrip()
            if not stripped:
                self._held = text
                return ""
            if not stripped.startswith(begin):
                if self._follows_call and stripped.startswith((";", ",")):
                    return stripped[1:]  # separates calls
                self._is_plain = True
                self._tell(text, events)
                return ""
            start = len(text) - len(stripped)
        else:
            start = text.find(begin)
            if start < 0:
                num_held = overlap(text, begin)
                self._held = text[len(text) - num_held :]
                self._tell(text[: len(text) - num_held], events)
                return ""
            self._tell(text[:start], events)
        self._call, self._raw = CallText(self._syntax.body), [text[:start] if self._syntax.only_first else "", begin]
        return text[start + len(begin) :]

    def _inside(self, text: str, events: list[CallEvent]) -> str:
        """Takes the text of a call; returns what follows it."""
        call = self._call
        assert call is not None
        for position, char in enumerate(text):
            try:
                events += call.feed(char)
            except NotACall:
                self._call = None
                if call.has_started:  # what was told stands; the rest is text like any other
                    return text[position:]
                self._is_plain = self._syntax.only_first
                self._tell("".join(self._raw), events)
                return text[position:]
            if not call.has_started:
                self._raw.append(char)
            if call.is_done:
                self._call, self._follows_call = None, True
                return text[position + 1 :]
        return ""

    def _tell(self, text: str, events: list[CallEvent]) -> None:
        if self._follows_call:
            text = text.lstrip()
        if text:
            self._follows_call = False
            events.append(Content(text))
