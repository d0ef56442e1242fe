"""The content blocks of Anthropic's answers, and the events that tell of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from server.api.anthropic.block_writer import SIGNATURE, BlockWriter
from server.output_parsers.reading.parser_events import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)


def told(blocks: BlockWriter, *parts: ParserEvent) -> list[dict[str, Any]]:
    """What the events of these parts, and of the end, say."""
    events = [*blocks.feed(parts), *blocks.close()]
    return [json.loads(event.split(b"\ndata: ")[1]) for event in events]


def kinds(events: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(event["type"].removeprefix("content_block_"), event["index"]) for event in events]


def test_a_text_is_one_block_however_it_comes() -> None:
    blocks = BlockWriter(with_thinking=True, shows_thinking=True)
    events = told(blocks, ContentDelta("a"), ContentDelta(" "), ContentDelta("b"))
    assert kinds(events) == [("start", 0), ("delta", 0), ("delta", 0), ("delta", 0), ("stop", 0)]
    assert blocks.whole == [{"type": "text", "text": "a b"}]


@pytest.mark.parametrize(
    ("shows", "text", "deltas"),
    [(True, "hm", ["thinking_delta", "signature_delta"]), (False, "hm", ["signature_delta"])],
)
def test_thinking_comes_signed_and_apart(shows: bool, text: str, deltas: list[str]) -> None:
    blocks = BlockWriter(with_thinking=True, shows_thinking=shows)
    events = told(blocks, ReasoningDelta(text), ContentDelta("a"))
    assert [event["delta"]["type"] for event in events if event["index"] == 0 and "delta" in event] == deltas
    thinking = {"type": "thinking", "thinking": text if shows else "", "signature": SIGNATURE}
    assert blocks.whole == [thinking, {"type": "text", "text": "a"}]


def test_thinking_that_is_not_told_makes_no_block() -> None:
    blocks = BlockWriter(with_thinking=False, shows_thinking=True)
    assert kinds(told(blocks, ReasoningDelta("hm"), ContentDelta("a"))) == [("start", 0), ("delta", 0), ("stop", 0)]


def test_calls_are_blocks_and_white_space_between_them_is_none() -> None:
    blocks = BlockWriter(with_thinking=True, shows_thinking=True)
    events = told(
        blocks, ContentDelta("\n"), ToolCallStart("f"), ToolCallArguments('{"a":'), ToolCallArguments("1}"),
        ContentDelta("\n\n"),
        ToolCallStart("g"), ToolCallArguments('{"b": "cut o'),
    )  # fmt: skip
    assert [index for kind, index in kinds(events) if kind == "start"] == [0, 1]
    assert [(block["name"], block["input"]) for block in blocks.whole] == [("f", {"a": 1})]
    assert [index for kind, index in kinds(events) if kind == "stop"] == [0]  # a call that is cut off has no end


def test_an_integer_of_any_size_is_told_as_the_model_wrote_it() -> None:
    blocks = BlockWriter(with_thinking=True, shows_thinking=True)
    told(blocks, ToolCallStart("f"), ToolCallArguments('{"a": 123456789012345678901234567890}'))
    assert orjson.dumps(blocks.whole[0]["input"]) == b'{"a": 123456789012345678901234567890}'


def test_white_space_before_a_text_belongs_to_it() -> None:
    blocks = BlockWriter(with_thinking=True, shows_thinking=True)
    told(blocks, ContentDelta("\n "), ContentDelta("a"))
    assert blocks.whole == [{"type": "text", "text": "\n a"}]
