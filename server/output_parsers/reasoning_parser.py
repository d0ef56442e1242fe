"""The syntaxes of reasoning, and the parser that splits it from the content behind it.

The markers are those of the models' own chat templates. Reasoning stands at the beginning of an output. Some
templates open it themselves, so that the prompt ends with the first marker and the output begins within the reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from server.output_parsers.reading.markers import overlap
from server.output_parsers.reading.parser_events import ContentDelta, ReasoningDelta

if TYPE_CHECKING:  # the settings know the names here, and `eagre serve --help` shall not wait for templates
    from server.text.chat_template import ChatTemplate

OFF = "none"  # the name by which the flag turns reasoning off


class ReasoningSyntax(NamedTuple):
    """How one family of models marks its reasoning. No marker is part of another one."""

    name: str  # as the flag names it
    begins: tuple[str, ...]  # any of them begins the reasoning
    ends: tuple[str, ...]  # any of them ends it
    template_mark: str = ""  # a text by which a chat template of such a model is known
    is_always_open: bool = False  # whether answers begin within the reasoning unless the prompt closes it
    parts: tuple[str, ...] = ()  # of the markers, that may be control tokens by themselves

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers that may be control tokens of the model, which other outputs do not show."""
        return (*self.begins, *self.ends, *self.parts)

    def is_opened_by(self, prompt_end: str) -> bool:
        """Whether an output that follows a prompt with this end begins within the reasoning."""
        end = prompt_end.rstrip()
        return end.endswith(self.begins) or (self.is_always_open and not end.endswith(self.ends))

    def is_closed_by(self, prompt_end: str) -> bool:
        """Whether the prompt has ended the reasoning already, which is mostly empty then."""
        return prompt_end.rstrip().endswith(self.ends)


QWEN3 = ReasoningSyntax("qwen3", ("<think>",), ("</think>",), template_mark="</think>")
DEEPSEEK_R1 = ReasoningSyntax("deepseek_r1", ("<think>",), ("</think>",), is_always_open=True)
MISTRAL_THINK = ReasoningSyntax("mistral", ("[THINK]",), ("[/THINK]",), template_mark="[THINK]")
SEED_OSS = ReasoningSyntax("seed_oss", ("<seed:think>",), ("</seed:think>",), template_mark="<seed:think>")
MINIMAX_M3 = ReasoningSyntax("minimax_m3", ("<mm:think>",), ("</mm:think>",), template_mark="<mm:think>")
GRANITE = ReasoningSyntax(
    "granite",
    ("Here is my thought process:", "Here's my thought process:"),
    ("Here is my response:", "Here's my response:"),
    template_mark="Here is my thought process",
)
COHERE = ReasoningSyntax(
    "cohere_command", ("<|START_THINKING|>",), ("<|END_THINKING|>",), template_mark="<|START_THINKING|>"
)
GEMMA4 = ReasoningSyntax(
    "gemma4", ("<|channel>thought",), ("<channel|>",), template_mark="<|channel>thought", parts=("<|channel>",)
)
# The reasoning behind the first one, between calls and texts, is read with the calls.
HARMONY = ReasoningSyntax(
    "openai_gptoss", ("<|channel|>analysis<|message|>",), ("<|end|>",), template_mark="<|channel|>analysis",
    parts=("<|channel|>", "<|message|>"),
)  # fmt: skip

# The order matters for templates: some have tags of others, too.
REASONING_SYNTAXES: tuple[ReasoningSyntax, ...] = (
    HARMONY,
    GEMMA4,
    COHERE,
    QWEN3,
    DEEPSEEK_R1,
    MISTRAL_THINK,
    SEED_OSS,
    MINIMAX_M3,
    GRANITE,
)


def choose_reasoning(name: str | None, chat_template: ChatTemplate | None) -> ReasoningSyntax | None:
    """The syntax with this name, or without a name that of the model's template; None where there is none."""
    if name == OFF:
        return None
    if name is not None:
        return next(syntax for syntax in REASONING_SYNTAXES if syntax.name == name)
    source = "" if chat_template is None else chat_template.source
    marked = (syntax for syntax in REASONING_SYNTAXES if syntax.template_mark)
    return next((syntax for syntax in marked if syntax.template_mark in source), None)


class ReasoningParser:
    """Splits the reasoning of one output, which may begin within it, from the text behind it, however it is cut.

    White space next to the markers belongs to the syntax: it is neither reasoning nor content. Nor is a marker that a
    model writes twice.
    """

    def __init__(self, syntax: ReasoningSyntax, *, is_open: bool) -> None:
        self._syntax = syntax
        self._is_open = is_open
        self._is_decided = False  # whether it is known if the answer begins with reasoning
        self._is_inside = False
        self._is_fresh = False  # nothing but white space has come since the last marker
        self._held = ""  # may become a marker
        self._spaces: list[str] = []  # white space that is reasoning if more of it comes, and else stands at a marker
        self._num_bytes = 0  # of all text so far, until the reasoning has ended
        self.end: int | None = None  # where the content begins, in bytes of UTF-8; None while that is not known

    @property
    def is_inside(self) -> bool:
        """Whether the text so far ends within the reasoning."""
        return self._is_inside

    def feed(self, text: str) -> Sequence[ContentDelta | ReasoningDelta]:
        """The events that have become certain with `text`."""
        if self.end is None:
            self._num_bytes += len(text.encode("utf-8", "surrogatepass"))
        text, self._held = self._held + text, ""
        if not self._is_decided:
            text = self._decide(text)
        if not text:
            return ()
        return self._inside(text) if self._is_inside else self._behind(text)

    def flush(self) -> Sequence[ContentDelta | ReasoningDelta]:
        """The events of the text that was held back, once no more text can come."""
        held, self._held = self._held, ""
        if not self._is_decided and not self._is_open:
            held, self._spaces = "".join((*self._spaces, held)), []
            return (ContentDelta(held),) if held else ()
        if self._is_inside:
            return self._emit(self._without_last_space(held))
        if self._is_decided:
            return (ContentDelta(held),) if held else ()
        held = held.strip()  # of the reasoning that the prompt has begun, unless it is empty
        return (ReasoningDelta(held),) if held else ()

    def _decide(self, text: str) -> str:
        """Finds out whether the output begins with reasoning. Returns what is left to read."""
        stripped = text.lstrip()
        begin = next((begin for begin in self._syntax.begins if stripped.startswith(begin)), None)
        self._spaces.append(text[: len(text) - len(stripped)])
        if begin is None and any(marker.startswith(stripped) for marker in self._syntax.begins):
            self._held = stripped
            return ""
        spaces, self._spaces = self._spaces, []
        self._is_decided = True
        if begin is not None or self._is_open:
            self._is_inside = self._is_fresh = True
            return stripped.removeprefix(begin or "")
        self.end = 0
        return "".join((*spaces, stripped))

    def _without_repeats(self, text: str, markers: Sequence[str]) -> str:
        """A text right behind one of `markers` without more of them. What may still become one is held back."""
        text = text.lstrip()
        while (again := next((marker for marker in markers if text.startswith(marker)), None)) is not None:
            text = text.removeprefix(again).lstrip()
        if text and any(marker.startswith(text) for marker in markers):
            self._held = text
            return ""
        return text

    def _inside(self, text: str) -> Sequence[ContentDelta | ReasoningDelta]:
        if self._is_fresh:
            text = self._without_repeats(text, self._syntax.begins)
            if not text:
                return ()
        found = [(text.find(end), end) for end in self._syntax.ends]
        place, marker = min(((place, end) for place, end in found if place >= 0), default=(-1, ""))
        if place < 0:
            num_held = max(overlap(text, end) for end in self._syntax.ends)
            self._held = text[len(text) - num_held :]
            return self._emit(self._without_last_space(text[: len(text) - num_held]))
        rest = text[place + len(marker) :]
        self.end = self._num_bytes - len(rest.encode("utf-8", "surrogatepass"))
        events = [*self._emit(self._without_last_space(text[:place]))]
        self._spaces = []
        self._is_inside, self._is_fresh = False, True
        return [*events, *self._behind(rest)]

    def _without_last_space(self, text: str) -> str:
        """A text within the reasoning, with the white space before it and without that at its end, which is kept."""
        certain = text.rstrip()
        if certain:
            before, self._spaces = self._spaces, [text[len(certain) :]]
            return "".join((*before, certain))
        if text:
            self._spaces.append(text)
        return ""

    def _emit(self, text: str) -> Sequence[ReasoningDelta]:
        if self._is_fresh:
            text = text.lstrip()
        if not text:
            return ()
        self._is_fresh = False
        return (ReasoningDelta(text),)

    def _behind(self, text: str) -> Sequence[ContentDelta]:
        if self._is_fresh:
            text = self._without_repeats(text, self._syntax.ends)
        if not text:
            return ()
        self._is_fresh = False
        return (ContentDelta(text),)
