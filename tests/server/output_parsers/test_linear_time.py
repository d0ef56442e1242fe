"""Texts that are made to be hard to parse take time that is linear in their length, in pieces of any size."""

from __future__ import annotations

import time

import pytest

from server.output_parsers.families.gemma4 import GEMMA4
from server.output_parsers.families.json_formats import HERMES
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.output_parser import OutputFormat, OutputParser
from server.output_parsers.reading.json_repair import JsonRepair
from server.output_parsers.reading.parser_events import ReasoningDelta
from server.output_parsers.reasoning_parser import QWEN3, ReasoningParser
from tests.fakes.text_model import FakeTokenizer

MOST_SECONDS = 1.5  # of processor time; each takes a tenth to a fifth of it, and took longer where it was a square
SCHEMAS = {"w": {"properties": {"city": {"type": "string"}}}}


@pytest.mark.parametrize(
    ("syntax", "begin", "unit", "size"),
    [
        (HERMES, "", "<a>", 30_000),
        (HERMES, "", '\nw(city="', 30_000),
        (HERMES, "", '{"function":', 60_000),
        (HERMES, '<tool_call>{"name": "w", "arguments": {"city": "', '", "', 60_000),
        (GEMMA4, '<|tool_call>call:w{city:<|"|>', '<|"|>', 100_000),
    ],
)
def test_hard_texts_take_time_that_is_no_square(syntax: ToolCallSyntax, begin: str, unit: str, size: int) -> None:
    parts = OutputFormat(None, syntax).of_request(may_call=True, must_call=False, schemas=SCHEMAS)
    text = begin + unit * (size // len(unit))
    before = time.process_time()
    OutputParser(parts, [], FakeTokenizer()).feed(text, is_last=True)
    assert time.process_time() - before < MOST_SECONDS


def test_white_space_that_is_held_back_is_not_looked_at_again() -> None:
    parser, repair = ReasoningParser(QWEN3, is_open=True), JsonRepair()
    parser.feed("Hm.")
    for char in "[1,":
        repair.feed(char)
    before = time.process_time()
    for _ in range(150_000):
        assert not parser.feed(" ")
        assert not repair.feed(" ")
    assert time.process_time() - before < MOST_SECONDS
    assert parser.feed("So.") == (ReasoningDelta(" " * 150_000 + "So."),)
    assert repair.feed("]") == " " * 150_000 + "]"
