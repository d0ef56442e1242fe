"""Reasoning, content and calls come apart the same wherever the text is cut."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.output_parsers.families.json_formats import ARRAY, HERMES, LLAMA, MISTRAL
from server.output_parsers.output_parser import OutputFormat, OutputParser
from server.output_parsers.reading.parser_events import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
    merged,
)
from server.output_parsers.reasoning_parser import (
    DEEPSEEK_R1,
    GRANITE,
    MISTRAL_THINK,
    QWEN3,
    REASONING_SYNTAXES,
    SEED_OSS,
    ReasoningSyntax,
    choose_reasoning,
)
from server.output_parsers.tool_call_syntaxes import TOOL_CALL_SYNTAXES
from server.text.chat_template import ChatTemplate
from tests.fakes.text_model import FakeTokenizer

Format = OutputFormat
TOKENIZER = FakeTokenizer()
OPENED, PLAIN = "<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n"
CALL = '<tool_call>\n{"name": "w", "arguments": {"a": 1}}\n</tool_call>'
CALLED = [ToolCallStart("w"), ToolCallArguments('{"a": 1}')]


def read(parts: OutputFormat, prompt: str, *pieces: str) -> list[ParserEvent]:
    reader = OutputParser(parts, list(prompt.encode()), TOKENIZER)
    events = [event for piece in pieces for event in reader.feed(piece, is_last=False)]
    events = merged([*events, *reader.feed("", is_last=True)])
    assert reader.num_calls == sum(isinstance(event, ToolCallStart) for event in events)
    return events


CASES: list[tuple[OutputFormat, str, str, list[ParserEvent]]] = [
    (Format(QWEN3), PLAIN, "<think>\nA é\n\nB.\n</think>\n\nYes.\n",
     [ReasoningDelta("A é\n\nB."), ContentDelta("Yes.\n")]),
    (Format(QWEN3), OPENED, "A.\n</think>\n\nYes.", [ReasoningDelta("A."), ContentDelta("Yes.")]),
    (Format(QWEN3), OPENED, "<think>A.</think>Yes.", [ReasoningDelta("A."), ContentDelta("Yes.")]),
    (Format(QWEN3), PLAIN, "Yes. <think>No</think>", [ContentDelta("Yes. <think>No</think>")]),
    (Format(QWEN3), PLAIN, " \n<thin ice", [ContentDelta(" \n<thin ice")]),
    (Format(QWEN3), PLAIN, "<thi", [ContentDelta("<thi")]),
    (Format(QWEN3), OPENED, "<thi", [ReasoningDelta("<thi")]),
    (Format(QWEN3), OPENED, "a < b </thin </think", [ReasoningDelta("a < b </thin </think")]),
    (Format(QWEN3), OPENED, "\n\n</think>\n\nYes.", [ContentDelta("Yes.")]),
    (Format(QWEN3), OPENED, "cut off \n", [ReasoningDelta("cut off")]),
    (Format(DEEPSEEK_R1), PLAIN, "A.</think>Yes.", [ReasoningDelta("A."), ContentDelta("Yes.")]),
    (Format(MISTRAL_THINK, MISTRAL), PLAIN, "[THINK]A [/THIN[/THINK]B",
     [ReasoningDelta("A [/THIN"), ContentDelta("B")]),
    (Format(SEED_OSS), PLAIN, "<seed:think>A</seed:think>B", [ReasoningDelta("A"), ContentDelta("B")]),
    (Format(GRANITE), PLAIN, "Here's my thought process: A.\nHere is my response:\nB",
     [ReasoningDelta("A."), ContentDelta("B")]),
    (Format(GRANITE), PLAIN, "Here is nothing.", [ContentDelta("Here is nothing.")]),
    (Format(QWEN3, HERMES), OPENED, f"A {CALL}</think>\n\nI look. {CALL}\n",
     [ReasoningDelta(f"A {CALL}"), ContentDelta("I look. "), *CALLED]),
    (Format(QWEN3, HERMES), OPENED, f"A</think>\n\n{CALL}", [ReasoningDelta("A"), *CALLED]),
    (Format(QWEN3, LLAMA), OPENED, 'A</think>\n\n{"name": "w", "parameters": {"a": 1}}',
     [ReasoningDelta("A"), *CALLED]),
    (Format(None, HERMES), OPENED, "A</think>" + CALL, [ContentDelta("A</think>"), *CALLED]),
    (Format(), OPENED, "A</think>B", [ContentDelta("A</think>B")]),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "prompt", "text", "events"), CASES)
def test_every_split_gives_the_same_parts(
    parts: OutputFormat, prompt: str, text: str, events: Sequence[ParserEvent]
) -> None:
    assert read(parts, prompt, text) == events
    assert read(parts, prompt, *text) == events
    for cut in range(len(text)):
        assert read(parts, prompt, text[:cut], text[cut:]) == events


MARKERS = [marker for syntax in REASONING_SYNTAXES for marker in (*syntax.begins, *syntax.ends)]
PIECES = st.sampled_from([*MARKERS, *(syntax.begins[0] for syntax in TOOL_CALL_SYNTAXES), CALL, " ", "\n", "a", "é"])
HALVES = st.builds(lambda text, size: text[:size], PIECES, st.integers(1, 9))
FORMATS = st.builds(
    OutputFormat,
    st.sampled_from([None, *REASONING_SYNTAXES]),
    st.sampled_from([None, ARRAY, *TOOL_CALL_SYNTAXES]),
    st.just({}),
)


@given(FORMATS, st.sampled_from([PLAIN, OPENED]), st.lists(PIECES | HALVES, max_size=8), st.data())
def test_any_text_gives_the_same_parts_whole_and_in_pieces(
    parts: OutputFormat, prompt: str, pieces: list[str], data: st.DataObject
) -> None:
    text = "".join(pieces)
    events = read(parts, prompt, text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    bounds = [0, *cuts, len(text)]
    assert read(parts, prompt, *(text[a:b] for a, b in itertools.pairwise(bounds))) == events


@given(
    st.text(st.sampled_from("ab<think/>é\n "), max_size=30), st.text(st.sampled_from("ab\né "), max_size=20), st.data()
)
def test_the_tokens_of_the_reasoning_are_counted_the_same_however_they_come(
    reasoning: str, answer: str, data: st.DataObject
) -> None:
    text = f"<think>{reasoning}</think>{answer}"
    before = len(text.split("</think>", maxsplit=1)[0].encode()) + len("</think>")
    reader = OutputParser(Format(QWEN3), [], TOKENIZER)
    rest = text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        reader.feed(rest[:size], list(rest[:size].encode()), is_last=size == len(rest))
        rest = rest[size:]
    assert reader.num_reasoning_tokens == before


@given(st.integers(0, 40))
def test_an_answer_that_goes_on_is_read_from_where_it_was_cut(size: int) -> None:
    text = f"A b.</think>Yes. {CALL}"
    size = min(size, len(text) - 1)
    prompt = OPENED + text[:size]
    begun = OutputParser(Format(QWEN3, HERMES), list(OPENED.encode()), TOKENIZER)
    begun.feed(text[:size], list(text[:size].encode()), is_last=False)
    rest = begun.feed(text[size:], list(text[size:].encode()), is_last=True)
    reader = OutputParser(Format(QWEN3, HERMES), list(prompt.encode()), TOKENIZER, num_begun=size)
    assert reader.feed(text[size:], list(text[size:].encode()), is_last=True) == rest
    assert reader.num_reasoning_tokens == max(0, len("A b.</think>") - size)


def test_without_reasoning_no_token_of_it_is_counted() -> None:
    reader = OutputParser(Format(QWEN3), [], TOKENIZER)
    reader.feed("Yes.", list(b"Yes."), is_last=True)
    assert reader.num_reasoning_tokens == 0


@pytest.mark.parametrize(
    ("name", "source", "syntax"),
    [
        (None, "{{ '<think>' }}{% set x = content.split('</think>') %}", QWEN3),
        (None, "[THINK]", MISTRAL_THINK),
        (None, "<seed:think></seed:think>", SEED_OSS),
        (None, "Write 'Here is my thought process:' first", GRANITE),
        (None, "{{ messages }}", None),
        ("deepseek_r1", "{{ messages }}", DEEPSEEK_R1),
        ("none", "</think>", None),
    ],
)
def test_the_syntax_follows_from_the_flag_or_the_template(
    name: str | None, source: str, syntax: ReasoningSyntax | None
) -> None:
    assert choose_reasoning(name, ChatTemplate(source)) is syntax


def test_what_a_request_rules_out_is_not_looked_for() -> None:
    model = Format(QWEN3, MISTRAL)
    assert model.of_request(may_call=True, must_call=False) == model
    assert model.of_request(may_call=False, must_call=False) == Format(QWEN3)
    assert model.of_request(may_call=True, must_call=True) == Format(QWEN3, ARRAY)
    assert Format().of_request(may_call=True, must_call=False) == Format(None, HERMES)
