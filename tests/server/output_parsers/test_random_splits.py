"""Texts in all syntaxes give the same parts and the same reason, whole and in any pieces."""

from __future__ import annotations

import os
import random
from itertools import pairwise

import pytest

from engine.interface.types import FinishReason
from server.api.openai.chat_deltas import ChatDeltaParser
from server.output_parsers.output_parser import OutputFormat
from server.output_parsers.reasoning_parser import REASONING_SYNTAXES
from server.output_parsers.tool_call_syntaxes import TOOL_CALL_SYNTAXES
from tests.fakes.text_model import FakeTokenizer
from tests.server.output_parsers.test_call_finder import CUT, TEXTS, WHOLE
from tests.server.output_parsers.test_tool_parser import CASES, SCHEMAS

NUM_TEXTS, NUM_SPLITS = (200, 50) if os.environ.get("EAGRE_FULL") else (60, 8)
TOKENIZER = FakeTokenizer()
PARTS = [*(text for _, text, _ in CASES), *(text for text, _ in (*WHOLE, *CUT)), *TEXTS, "Sure. ", "</tool_call>", "\n"]


def read(parts: OutputFormat, pieces: list[str]) -> tuple[str | None, dict[str, object]]:
    """The reason of a stream, and the message that its chunks make."""
    parser = ChatDeltaParser(parts, [], TOKENIZER)
    deltas = []
    for at, piece in enumerate(pieces):
        deltas += parser.feed(piece, [], is_last=at == len(pieces) - 1)
    for delta in deltas:
        assert sum(map(bool, delta)) <= 1
    calls: dict[int, str] = {}
    for delta in deltas:
        for call in delta.tool_calls:
            function = call["function"]
            calls[call["index"]] = calls.get(call["index"], "") + function.get("name", "") + function["arguments"]
    message: dict[str, object] = {
        "reasoning": "".join(delta.reasoning for delta in deltas),
        "content": "".join(delta.content for delta in deltas),
        "calls": calls,
    }
    return parser.reason(FinishReason.STOP), message


@pytest.mark.parametrize("seed", range(NUM_TEXTS))
def test_any_split_gives_the_same_parts_and_the_same_reason(seed: int) -> None:
    rng = random.Random(seed)
    parts = OutputFormat(rng.choice([None, *REASONING_SYNTAXES]), rng.choice([None, *TOOL_CALL_SYNTAXES])).of_request(
        may_call=rng.random() < 0.9, must_call=False, schemas=SCHEMAS, is_parallel=rng.random() < 0.8
    )
    text = "".join(rng.choice(PARTS) for _ in range(rng.randint(1, 4)))
    if parts.reasoning is not None and rng.random() < 0.7:
        text = f"{parts.reasoning.begins[0]}Hm.{parts.reasoning.ends[0] if rng.random() < 0.7 else ' '}{text}"
    if rng.random() < 0.3:
        text = text[: rng.randrange(len(text)) + 1]
    whole = read(parts, [text])
    for _ in range(NUM_SPLITS):
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.choice([1, 2, 5, len(text)])))
        bounds = [0, *cuts, len(text)]
        assert read(parts, [text[begin:end] for begin, end in pairwise(bounds)]) == whole
