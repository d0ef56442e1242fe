"""Calls of outputs that forget to end their reasoning."""

from __future__ import annotations

import pytest

from server.output_parsers.families.json_formats import HERMES, LLAMA
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.output_parser import OutputFormat, OutputParser
from server.output_parsers.reading.parser_events import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
    merged,
)
from server.output_parsers.reasoning_parser import QWEN3
from tests.fakes.text_model import FakeTokenizer

TOKENIZER = FakeTokenizer()
SCHEMAS = {"w": {"type": "object", "properties": {"n": {"type": "integer"}}}}
CALL = '<tool_call>\n{"name": "w", "arguments": {"n": 1}}\n</tool_call>'
XML = "<tool_call>\n<function=w>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"
OF_W: list[ParserEvent] = [ToolCallStart("w"), ToolCallArguments('{"n": 1}')]


def read(
    text: str, size: int, calls: ToolCallSyntax = HERMES, *, may_call: bool = True
) -> tuple[list[ParserEvent], bool]:
    parts = OutputFormat(QWEN3, calls).of_request(may_call=may_call, must_call=False, schemas=SCHEMAS)
    reader = OutputParser(parts, [*b"<think>\n"], TOKENIZER)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    events = [event for piece in pieces for event in reader.feed(piece, is_last=False)]
    return merged([*events, *reader.feed("", is_last=True)]), reader.has_whole_calls


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("text", "events"),
    [
        (f"Hm.\n{CALL}", [ReasoningDelta("Hm."), *OF_W]),
        (f"Hm.\n{XML}\n", [ReasoningDelta("Hm."), *OF_W]),
        (f"{CALL}\n{CALL}", [*OF_W, *OF_W]),
        (f'Hm.\n{CALL}\n<tool_call>{{"na', [ReasoningDelta("Hm."), *OF_W]),  # the next one is cut off
        (f"Hm.\n{CALL}\n</think>\n", [ReasoningDelta("Hm."), *OF_W]),
        (f"Hm.\n<tool_call>\n{CALL}", [ReasoningDelta("Hm."), *OF_W]),
        (f"Hm.\n<tool_call>\n{XML}\n</tool_call>", [ReasoningDelta("Hm."), *OF_W]),
        (f"<think>Hm.\n{CALL}", [ReasoningDelta("Hm."), *OF_W]),
        (f"I could write {CALL} here, {CALL}", [ReasoningDelta(f"I could write {CALL} here,"), *OF_W]),
    ],
)
def test_an_output_that_ends_with_calls_has_ended_its_reasoning(
    text: str, events: list[ParserEvent], size: int
) -> None:
    assert read(text, size) == (events, True)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"I write {CALL} now", []),
        ("I write <tool_call>", []),
        (f"Hm. {CALL[:-15]}", []),  # cut off
        (f"Hm. {CALL[:30]}", []),
        (CALL.replace('"w"', '"other"'), []),
        (f"Hm. {CALL}</think>Yes.", [ContentDelta("Yes.")]),
        (f"Hm. {CALL}</think>{CALL}", OF_W),
    ],
)
def test_what_comes_before_the_end_of_the_reasoning_is_reasoning(text: str, told: list[ParserEvent], size: int) -> None:
    thought = text.partition("</think>")[0]
    assert read(text, size) == ([ReasoningDelta(thought), *told], told == OF_W)


def test_without_tools_and_where_any_text_may_look_like_a_call_nothing_is_found() -> None:
    assert read(f"Hm. {CALL}", 7, may_call=False) == ([ReasoningDelta(f"Hm. {CALL}")], False)
    text = 'Hm. <|python_tag|>{"name": "w", "parameters": {}}'
    assert read(text, 7, LLAMA) == ([ReasoningDelta(text)], False)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("<think>\n<think>\nHm.</think>\n</think>\n\nYes.", [ReasoningDelta("Hm."), ContentDelta("Yes.")]),
        ("Hm.</think></th", [ReasoningDelta("Hm."), ContentDelta("</th")]),
        ("<thi", [ReasoningDelta("<thi")]),
        ("Hm.</think>Use </think> to close.", [ReasoningDelta("Hm."), ContentDelta("Use </think> to close.")]),
    ],
)
def test_markers_of_a_reasoning_may_be_doubled(text: str, events: list[ParserEvent], size: int) -> None:
    assert read(text, size)[0] == events
