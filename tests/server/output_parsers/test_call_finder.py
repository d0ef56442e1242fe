"""Calls in other clothes are found at the ends of an answer, in any wrapper, and what is no call stays text."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from server.output_parsers.call_finder import CallFinder
from server.output_parsers.reading.parser_events import (
    ContentDelta,
    ToolCallArguments,
    ToolCallStart,
    ToolEvent,
    merged,
)

CALL = '{"name": "w", "arguments": {"a": 1}}'
ONE: list[ToolEvent] = [ToolCallStart("w"), ToolCallArguments('{"a": 1}')]


def read(*pieces: str) -> tuple[list[ToolEvent], bool]:
    finder = CallFinder({"w": {}, "v": {}})
    events = [event for piece in pieces for event in finder.feed(piece)]
    return merged([*events, *finder.flush()]), finder.has_cut_call


WHOLE: list[tuple[str, list[ToolEvent]]] = [
    (CALL, ONE),
    (f"\n\n{CALL}\n", ONE),
    (f"```json\n{CALL}\n```", ONE),
    (f"```\n{CALL}\n```\n\n```\n{CALL}\n```", ONE * 2),
    (f"<function>{CALL}</function>", ONE),
    (f"<tools>\n{CALL}\n{CALL}\n</tools>", ONE * 2),
    (f"<function-call> {CALL}", ONE),
    (f"```xml\n<tools>{CALL}</tools>\n```", ONE),
    (f"<tool_call>[{CALL}, {CALL}]</tool_call>", ONE * 2),
    (CALL.replace("arguments", "parameters"), ONE),
    (f"{CALL}\n{CALL}", ONE * 2),
    (f"{CALL}; {CALL}", ONE * 2),
    (f'{{"type": "function", "function": {CALL}}}', ONE),
    (f'{{"id": "1", "type": "function", {CALL[1:]}', ONE),
    ('{"arguments": {"a": 1}, "name": "w"}', ONE),
    ('{"name": "w", "arguments": "{\\"a\\": 1}"}', ONE),
    (f"I look.\n```json\n{CALL}\n```", [ContentDelta("I look.\n"), *ONE]),
    (f"I look: {CALL}", [ContentDelta("I look: "), *ONE]),
    (f"I look: [{CALL}, {CALL}]", [ContentDelta("I look: "), *ONE, *ONE]),
    (f"{CALL}\nThat is it.", [*ONE, ContentDelta("That is it.")]),
    (f"{CALL} then {CALL}", [*ONE, ContentDelta("then "), *ONE]),
    ("I look.\n```json\n" + CALL + "\n``", [ContentDelta("I look.\n"), *ONE]),
    (f"~~~json\n{CALL}\n~~~", ONE),
    (f"[TOOL_REQUEST]{CALL}[END_TOOL_REQUEST]", ONE),
    (f"[TOOL_CALL]\n{CALL}\n[/TOOL_CALL]", ONE),
    (CALL.replace('"', "\u201c", 1).replace('"', "\u201d", 1), ONE),
    ('{“name”: “w”, “arguments”: {“a”: 1}}', ONE),
    ('{"action": "w", "action_input": {"a": 1}}', ONE),
    ("w(a=1)", ONE),
    ("w(a=1)\nv()", [*ONE, ToolCallStart("v"), ToolCallArguments("{}")]),
    ("I look.\nw(a=1)\n", [ContentDelta("I look.\n"), *ONE]),
    ("functions.w(a=1)", ONE),
    ("```python\nw(a=1)\nw(a=1)\n```", ONE * 2),
    ("```tool_code\nprint(default_api.w(a=1))\n```", ONE),
    ("I look: [w(a=1), w(a=1)]", [ContentDelta("I look: "), *ONE, *ONE]),
    ("<tools>w(a=1)</tools>", ONE),
    ('Action: w\nAction Input: {"a": 1}', ONE),
    ('Hm.\nAction: `w`\nAction Input:\n```json\n{"a": 1}\n```\nObservation:', [ContentDelta("Hm.\n"), *ONE]),
    ('Action: w\nAction Input: {"a": 1}\nObservation: 5', [*ONE, ContentDelta("Observation: 5")]),
    (f"{CALL}\n```python\nprint(1)\n```", [*ONE, ContentDelta("```python\nprint(1)\n```")]),
    ('{"name": "w", "arguments": {"b": NaN, "c": 1e400, "d": [1,], "e": "x\ny"}}',
     [ToolCallStart("w"), ToolCallArguments('{"b": null, "c": null, "d": [1], "e": "x\\ny"}')]),
]  # fmt: skip
TEXTS = [
    f"Write {CALL} to call it.",
    f"Write\n```json\n{CALL}\n```\nto call it.",
    f"`{CALL}` and {{}}",
    CALL.replace('"w"', '"other"'),
    '{"name": "w"}',
    '{"name": "w", "arguments": [1]}',
    '{"name": "w", "description": "of a city", "parameters": {"type": "object"}}',
    '{"name": "Bob", "age": 3}',
    '{"result": 2}',
    f'{{"a": {CALL}}}',
    "```python\nprint({'name': 1})\n```",
    "a < b, [see](w), {x}, `w`, <b>w</b>",
    '{"name": "w", "arg',
    "w(a=1) is how it is called.",
    "Call w(a=1).",
    "w(a=b)",
    "w(1)",
    "x(a=1)",
    "[w(a=1), x()]",
    "```python\nw(a=1)\nprint(2)\n```",
    "```python\nb = w(a=1)\n```",
    "w(a='",
    "w",
    'Action: x\nAction Input: {"a": 1}',
    "Action: w\nI do nothing.",
    'Hm.\nAction: w\nAction Input: {"a": 1}\nObservation: 5\nSo.',
    "~~~\nw\n~~~",
    "[TOOL_REQUEST] [1]",
    "<w>1</w>",
    "  ",
]
CUT: list[tuple[str, list[ToolEvent]]] = [
    ('```json\n{"name": "w", "arguments": {"a": 1', [ToolCallStart("w"), ToolCallArguments('{"a": 1')]),
    ('Hm. {"name": "w", "arguments": {"a": "x',
     [ContentDelta("Hm. "), ToolCallStart("w"), ToolCallArguments('{"a": "x')]),
]  # fmt: skip


def assert_every_split(text: str, events: list[ToolEvent], *, is_cut: bool) -> None:
    assert read(text) == (events, is_cut)
    assert read(*text) == (events, is_cut)
    for cut in range(len(text)):
        assert read(text[:cut], text[cut:]) == (events, is_cut)


@pytest.mark.parametrize(("text", "events"), WHOLE)
def test_a_call_in_any_wrapper_is_a_call(text: str, events: list[ToolEvent]) -> None:
    assert_every_split(text, events, is_cut=False)


@pytest.mark.parametrize("text", TEXTS)
def test_other_json_stays_text(text: str) -> None:
    assert_every_split(text, [ContentDelta(text)], is_cut=False)


@pytest.mark.parametrize(("text", "events"), CUT)
def test_a_call_that_is_cut_off_is_known_as_such(text: str, events: list[ToolEvent]) -> None:
    assert_every_split(text, events, is_cut=True)


FILES = {"read": {"properties": {"path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}}}}


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("<read>\n<path>a <b>\n</path>\n</read>", [ToolCallStart("read"), ToolCallArguments('{"path": "a <b>\\n"}')]),
        ("So.\n<read><lines><item>1</item><item>2</item></lines></read>",
         [ContentDelta("So.\n"), ToolCallStart("read"), ToolCallArguments('{"lines": [1, 2]}')]),
        ("<read><lines>[1]</lines></read>", [ToolCallStart("read"), ToolCallArguments('{"lines": [1]}')]),
        ('<tool_calls>\n<read path="a b" lines=\'[1]\' />\n</tool_calls>',
         [ToolCallStart("read"), ToolCallArguments('{"path": "a b", "lines": [1]}')]),
        ('<read path="a"></read>', [ToolCallStart("read"), ToolCallArguments('{"path": "a"}')]),
        ('<read path="a">b</read>', [ContentDelta('<read path="a">b</read>')]),
        ('<read class="a"/>', [ContentDelta('<read class="a"/>')]),
        ("<read ", [ContentDelta("<read ")]),
        ("<read><b>a</b></read>", [ContentDelta("<read><b>a</b></read>")]),
        ("<read></read>", [ContentDelta("<read></read>")]),
        ("<read><path>a", [ContentDelta("<read><path>a")]),
    ],
)  # fmt: skip
def test_an_element_with_the_name_of_a_tool_is_a_call(text: str, events: list[ToolEvent]) -> None:
    for cut in range(len(text)):
        finder = CallFinder(FILES)
        found = [*finder.feed(text[:cut]), *finder.feed(text[cut:]), *finder.flush()]
        assert merged(found) == events


CODE = [
    "```python\nimport tools\nread(path='a')\n```",
    "```python\ndef read():\n    pass\n\n    read()\nread()\n```",
    "So:\n~~~py\nx = 1\nread(path='a')\n~~~",
    "```python\n# all\n[read(path='a')]\n```",
    '```html\n<p>x</p>\n<read path="a"/>\n<read><path>a</path></read>\n```',
    "```python\nimport a\n<tool_call>read()",
    "```python\nimport a\nActi",
]


@pytest.mark.parametrize("text", CODE)
def test_code_that_ends_with_the_name_of_a_tool_is_no_call(text: str) -> None:
    for cut in range(len(text)):
        finder = CallFinder(FILES)
        found = [*finder.feed(text[:cut]), *finder.feed(text[cut:]), *finder.flush()]
        assert merged(found) == [ContentDelta(text)]


@pytest.mark.parametrize(
    ("before", "call"),
    [
        ("```py\nx = 1\n```\n", "read()"), ("```x``` it is:\n", "read()"),
        ("```py\nx = 1\n```\n\n", "```py\nread()\n```"),
        ("```py\nx = 1\n```\n", '{"name": "read", "arguments": {}}'),
        ("```\nx\n", '{"name": "read", "arguments": {}}\n```'),
        ("```\nThought: x\n", "Action: read\nAction Input: {}\n```"),
    ],
)  # fmt: skip
def test_a_call_behind_code_is_one(before: str, call: str) -> None:
    text = before + call
    for cut in range(len(text)):
        finder = CallFinder(FILES)
        found = [*finder.feed(text[:cut]), *finder.feed(text[cut:]), *finder.flush()]
        assert merged(found) == [ContentDelta(before), ToolCallStart("read"), ToolCallArguments("{}")]


def test_quotation_marks_that_end_a_call_in_the_midst_are_no_error() -> None:
    text = '{"name": "w", "arguments": {"a": "x" "}," !'
    for cut in range(len(text)):
        events, is_cut = read(text[:cut], text[cut:])
        assert (events[:2], is_cut) == ([ToolCallStart("w"), ToolCallArguments('{"a": "x\\" "}')], True)


def test_only_what_may_become_a_call_is_held_back() -> None:
    finder = CallFinder({"get_time": {}})
    pieces = ["go", "\nget", "_tea", "\n", "get_time", " is a tool\nget_time(", "zone=", "1", ") it"]
    assert [merged(finder.feed(piece)) for piece in pieces] == [
        [ContentDelta("go")], [ContentDelta("\n")], [ContentDelta("get_tea")], [ContentDelta("\n")], [],
        [ContentDelta("get_time is a tool\n")], [], [], [ContentDelta("get_time(zone=1) it")],
    ]  # fmt: skip


@pytest.mark.parametrize("written", ["get.time", "functions.get_time", "Get-Time", "get_time"])
def test_a_name_that_is_written_otherwise_is_that_of_the_tool_that_is_meant(written: str) -> None:
    finder = CallFinder({"get_time": {}, "set_time": {}})
    events = [*finder.feed(f'{{"name": "{written}", "arguments": {{}}}}'), *finder.flush()]
    assert merged(events) == [ToolCallStart("get_time"), ToolCallArguments("{}")]


def test_a_name_that_two_tools_could_have_stays_text() -> None:
    finder = CallFinder({"get_time": {}, "get-time": {}})
    text = '{"name": "get.time", "arguments": {}}'
    assert merged([*finder.feed(text), *finder.flush()]) == [ContentDelta(text)]


def test_arguments_at_the_beginning_are_emitted_as_they_come() -> None:
    finder = CallFinder({"w": {}})
    pieces = [finder.feed(piece) for piece in ('```json\n{"name": "w", "arguments": {"a": "', "x", "y", '"}}')]
    assert [list(events)[-1:] for events in pieces] == [
        [ToolCallArguments('{"a": "')], [ToolCallArguments("x")], [ToolCallArguments("y")], [ToolCallArguments('"}')],
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(50))
def test_any_mixture_gives_the_same_events_whole_and_in_pieces(seed: int) -> None:
    rng = random.Random(seed)
    parts = [*(text for text, _ in (*WHOLE, *CUT)), *TEXTS, "Sure. ", "\n", "```", "<", "]", ","]
    text = "".join(rng.choice(parts) for _ in range(rng.randint(1, 4)))
    whole = read(text)
    for _ in range(5):
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randint(1, 6)))
        bounds = [0, *cuts, len(text)]
        assert read(*(text[begin:end] for begin, end in pairwise(bounds))) == whole
