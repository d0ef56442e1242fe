"""Splits the text of one output into reasoning, content and tool calls while it streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from server.output_parsers.call_finder import CallFinder
from server.output_parsers.calls_in_reasoning import CallsInReasoning
from server.output_parsers.families.json_formats import ARRAY, HERMES
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.parser_events import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallStart,
    ToolEvent,
    merged,
)
from server.output_parsers.reasoning_parser import ReasoningParser, ReasoningSyntax
from server.output_parsers.tool_parser import StrayMarkers, ToolParser
from server.text.detokenizer import HasTokenTexts, IncrementalDetokenizer

PROMPT_END = 16  # tokens of a prompt in which the marker is looked for that begins reasoning


class OutputFormat(NamedTuple):
    """The syntaxes of reasoning and tool calls in outputs; None: nothing of the kind is parsed."""

    reasoning: ReasoningSyntax | None = None
    calls: ToolCallSyntax | None = None
    schemas: Mapping[str, Any] = MappingProxyType({})  # of the arguments of each tool, by its name
    takes_others: bool = True  # whether what calls a tool in another syntax is a call, too
    hides_calls: bool = False  # whether calls are left out of the output, because none may be made
    only_one: bool = False  # whether the output ends with its first call

    @property
    def is_plain(self) -> bool:
        """Whether all text is content."""
        return self.reasoning is None and self.calls is None

    @property
    def finds_calls_in_reasoning(self) -> bool:
        """Whether calls that end a reasoning are calls where nothing follows: where only calls have their marker."""
        calls = self.calls
        if calls is None or calls.is_ambiguous or calls.only_first or calls.frames_text:
            return False
        return self.reasoning is not None and bool(self.schemas) and not self.hides_calls

    def of_request(
        self,
        *,
        may_call: bool,
        must_call: bool,
        schemas: Mapping[str, Any] = MappingProxyType({}),
        is_parallel: bool = True,
    ) -> OutputFormat:
        """The format of the outputs of one request to the model that has this format.

        Args:
            may_call: whether there are tools to call. Where the model's syntax of calls is not known, the most common
                one is parsed.
            must_call: whether the output, but for its reasoning, consists of calls by a grammar.
            schemas: of the arguments of each tool, by its name. Some syntaxes do not tell texts from other values.
            is_parallel: whether there may be several calls.
        """
        if must_call:
            return OutputFormat(self.reasoning, ARRAY)
        if may_call:
            return self._replace(calls=self.calls or HERMES, schemas=schemas, only_one=not is_parallel)
        calls = self.calls or HERMES
        if calls.frames_text or (schemas and not calls.is_ambiguous):
            return OutputFormat(self.reasoning, calls, takes_others=False, hides_calls=True)
        return OutputFormat(self.reasoning)

    def markers(self, *, with_calls: bool) -> list[str]:
        """Markers that may be control tokens, whose text the parser needs."""
        of_reasoning = () if self.reasoning is None else self.reasoning.markers
        calls = self.calls or HERMES
        return [*of_reasoning, *(calls.markers if with_calls or calls.frames_text else ())]

    def starts_in_reasoning(self, prompt: Sequence[int], tokenizer: HasTokenTexts) -> bool:
        """Whether an output of this prompt begins within its reasoning, because the prompt has begun it."""
        return self.reasoning is not None and self.reasoning.is_opened_by(_end_of(prompt, tokenizer))

    def starts_after_reasoning(self, prompt: Sequence[int], tokenizer: HasTokenTexts) -> bool:
        """Whether an output of this prompt has no reasoning, because the prompt has ended it."""
        return self.reasoning is not None and self.reasoning.is_closed_by(_end_of(prompt, tokenizer))


def _end_of(prompt: Sequence[int], tokenizer: HasTokenTexts) -> str:
    texts = tokenizer.token_bytes
    end = b"".join(texts[token_id] or tokenizer.token_text(token_id).encode() for token_id in prompt[-PROMPT_END:])
    return end.decode(errors="replace")


class OutputParser:
    """Parses one output: text goes in, in pieces of any size, events come out; the cuts make no difference.

        parser = OutputParser(output_format, prompt_token_ids, tokenizer)
        parser.feed("<think>The user", [1, 2, 3], is_last=False)  # [ReasoningDelta("The user")]

    Args:
        prompt: token ids; their end shows whether the output begins within the reasoning.
        num_begun: how many of them are the output so far, which goes on.
    """

    def __init__(
        self, parts: OutputFormat, prompt: Sequence[int], tokenizer: HasTokenTexts, *, num_begun: int = 0
    ) -> None:
        self.num_calls = 0  # that have started
        self._num_reasoning_tokens = 0
        self._num_begun = num_begun
        self._tokenizer = tokenizer
        num_before = len(prompt) - num_begun
        is_open = parts.starts_in_reasoning(prompt[max(0, num_before - PROMPT_END) : num_before], tokenizer)
        self._reasoning = None if parts.reasoning is None else ReasoningParser(parts.reasoning, is_open=is_open)
        self._calls = None if parts.calls is None else ToolParser(parts.calls, parts.schemas)
        self._strays = StrayMarkers(() if parts.calls is None else parts.calls.strays)
        takes_others = parts.calls is not None and parts.takes_others and bool(parts.schemas)
        self._other_calls = CallFinder(parts.schemas) if takes_others else None
        self._early_calls = None  # those in the reasoning
        if self._reasoning is not None and parts.finds_calls_in_reasoning and parts.calls is not None:
            self._early_calls = CallsInReasoning(parts.calls, parts.schemas)
        self._hides_calls, self._only_one = parts.hides_calls, parts.only_one
        self._num_seen_calls = 0  # where only one is let through
        self._reasoning_ids: list[int] = []  # until it is known where the reasoning ends
        self._is_counted = False
        if num_begun:
            begun = prompt[num_before:]
            self.feed(IncrementalDetokenizer(tokenizer).decode(begun), begun, is_last=False)
            self.num_calls = 0

    @property
    def num_reasoning_tokens(self) -> int:
        """Reasoning tokens so far, markers included."""
        return max(0, self._num_reasoning_tokens - self._num_begun)

    @property
    def has_whole_calls(self) -> bool:
        """Whether there are calls, and none of them was cut off."""
        has_cut = (self._calls is not None and self._calls.has_cut_call) or (
            self._other_calls is not None and self._other_calls.has_cut_call
        )
        return self.num_calls > 0 and not has_cut

    def feed(self, text: str, token_ids: Sequence[int] = (), *, is_last: bool) -> list[ParserEvent]:
        """The events that have become certain with `text` and its token ids; with the last text, all of them."""
        if self._reasoning is None and self._calls is None:
            return [ContentDelta(text)] if text else []
        events: list[ParserEvent] = []
        if self._reasoning is None:
            events += self._behind_reasoning(text)
        else:
            for event in (*self._reasoning.feed(text), *(self._reasoning.flush() if is_last else ())):
                if isinstance(event, ContentDelta):
                    events += () if self._early_calls is None else self._early_calls.release()
                    events += self._behind_reasoning(event.text)
                else:
                    events += (event,) if self._early_calls is None else self._early_calls.feed(event.text)
            if self._early_calls is not None and is_last:
                events += self._early_calls.flush()
            self._count(token_ids, self._reasoning)
        if is_last and self._calls is not None:
            events += self._calls_in(self._calls.flush(drops_markup=True))
            events += self._calls_in([ContentDelta(self._strays.flush())])
            events += () if self._other_calls is None else self._other_calls.flush()
        if self._hides_calls:
            events = [event for event in events if isinstance(event, ContentDelta | ReasoningDelta)]
        elif self._only_one:
            events = self._without_second_call(events)
        self.num_calls += sum(isinstance(event, ToolCallStart) for event in events)
        return merged(events)

    def _behind_reasoning(self, text: str) -> Sequence[ParserEvent]:
        return (ContentDelta(text),) if self._calls is None else self._calls_in(self._calls.feed(text))

    def _calls_in(self, events: Sequence[ToolEvent]) -> list[ToolEvent]:
        """`events` with the calls in the texts among them, and without stray markers."""
        found: list[ToolEvent] = []
        for event in events:
            if isinstance(event, ContentDelta):
                found += self._calls_in_text(self._strays.feed(event.text))
                continue
            if isinstance(event, ToolCallStart):
                found += self._calls_in_text(self._strays.flush())
                found += () if self._other_calls is None else self._other_calls.interrupt()
            found.append(event)
        return found

    def _calls_in_text(self, text: str) -> Sequence[ToolEvent]:
        return (ContentDelta(text),) if self._other_calls is None else self._other_calls.feed(text)

    def _without_second_call(self, events: Sequence[ParserEvent]) -> list[ParserEvent]:
        """`events` up to the end of the first call of the output."""
        kept: list[ParserEvent] = []
        for event in events:
            self._num_seen_calls += isinstance(event, ToolCallStart)
            if not self._num_seen_calls or (self._num_seen_calls == 1 and not isinstance(event, ContentDelta)):
                kept.append(event)
        return kept

    def _count(self, token_ids: Sequence[int], reasoning: ReasoningParser) -> None:
        if self._is_counted:
            return
        self._reasoning_ids += token_ids
        end = reasoning.end
        if end is None:
            self._num_reasoning_tokens = len(self._reasoning_ids) if reasoning.is_inside else 0
            return
        self._is_counted, self._num_reasoning_tokens = True, 0
        for token_id in self._reasoning_ids:
            if end <= 0:
                break
            end -= len(self._tokenizer.token_bytes[token_id])
            self._num_reasoning_tokens += 1
        self._reasoning_ids = []
