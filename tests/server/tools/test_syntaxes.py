"""Tool calls are read the same wherever the text is cut, and what is no call stays text."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.tools.call_events import CallArguments, CallEvent, CallStart, Content, merged
from server.tools.syntaxes import ARRAY, HERMES, LLAMA, MISTRAL, Syntax, SyntaxReader, syntax_of_template

ONE, TWO = '{"city": "Oslo \\" } ] </tool_call>", "days": [1, {"a": null}]}', "{}"


def read(syntax: Syntax, *pieces: str) -> list[CallEvent]:
    reader = SyntaxReader(syntax)
    events = [event for piece in pieces for event in reader.feed(piece)]
    return merged([*events, *reader.flush()])


def call(name: str, arguments: str) -> list[CallEvent]:
    return [CallStart(name), CallArguments(arguments)]


CASES: list[tuple[Syntax, str, list[CallEvent]]] = [
    (HERMES, f'<tool_call>\n{{"name": "w", "arguments": {ONE}}}\n</tool_call>', call("w", ONE)),
    (
        HERMES,
        f'Let me see.\n<tool_call>{{"name":"w","arguments":{ONE}}}</tool_call>\n'
        f'<tool_call>\n{{"arguments": {TWO}, "id": 3, "name": "v"}}\n</tool_call>\n',
        [Content("Let me see.\n"), *call("w", ONE), *call("v", TWO)],
    ),
    (HERMES, '<tool_call>{"name": "w"}</tool_call> done', [*call("w", "{}"), Content("done")]),
    (HERMES, "<tool_call>{'name': 1}", [Content("<tool_call>{'name': 1}")]),
    (HERMES, "a <tool_calls> < <tool", [Content("a <tool_calls> < <tool")]),
    (HERMES, '<tool_call>{"name": "w", "arguments": {"a": 1', call("w", '{"a": 1')),
    (HERMES, '<tool_call>{"name": "\\u0077", "arguments": "{\\"a\\": 1}"}</tool_call>', call("w", '{"a": 1}')),
    (HERMES, '<tool_call>{"name": "", "arguments": {}}</tool_call>',
     [Content('<tool_call>{"name": "", "arguments": {}}</tool_call>')]),
    (MISTRAL, f'[TOOL_CALLS] [{{"name": "w", "arguments": {ONE}}}, {{"name": "v", "arguments": {TWO}}}]',
     [*call("w", ONE), *call("v", TWO)]),
    (MISTRAL, f"Yes. [TOOL_CALLS]w[ARGS]{ONE}[TOOL_CALLS]v[ARGS] {TWO}",
     [Content("Yes. "), *call("w", ONE), *call("v", TWO)]),
    (LLAMA, f'{{"name": "w", "parameters": {ONE}}}', call("w", ONE)),
    (LLAMA, f' {{"name": "w", "parameters": {ONE}}}; {{"name": "v", "parameters": {TWO}}}',
     [*call("w", ONE), *call("v", TWO)]),
    (LLAMA, '{"answer": 42}', [Content('{"answer": 42}')]),
    (LLAMA, 'I use {"name": "w", "parameters": {}}', [Content('I use {"name": "w", "parameters": {}}')]),
    (ARRAY, f'[{{"name": "w", "arguments": {ONE}}} , {{"name":"v","arguments":{TWO}}}]',
     [*call("w", ONE), *call("v", TWO)]),
]  # fmt: skip


@pytest.mark.parametrize(("syntax", "text", "events"), CASES)
def test_every_split_gives_the_same_calls(syntax: Syntax, text: str, events: Sequence[CallEvent]) -> None:
    assert read(syntax, text) == events
    assert read(syntax, *text) == events
    for cut in range(len(text)):
        assert read(syntax, text[:cut], text[cut:]) == events


TEXTS = st.text(st.sampled_from('<tool_call>/{}[]":,\\ nametruw;ARGS0'), max_size=60)


@given(st.sampled_from([HERMES, MISTRAL, LLAMA, ARRAY]), st.lists(TEXTS, max_size=5))
def test_any_text_gives_the_same_events_whole_and_in_pieces(syntax: Syntax, pieces: list[str]) -> None:
    events = read(syntax, "".join(pieces))
    assert read(syntax, *pieces) == events
    if not any(isinstance(event, CallStart) for event in events):
        assert "".join(event.text for event in events if isinstance(event, Content)) == "".join(pieces)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from([HERMES, MISTRAL, LLAMA, ARRAY]), st.dictionaries(st.text(), JSON, max_size=3), st.booleans())
def test_any_arguments_come_through(syntax: Syntax, arguments: dict[str, object], ascii_only: bool) -> None:
    body = json.dumps(arguments, ensure_ascii=ascii_only)
    key = "parameters" if syntax is LLAMA else "arguments"
    written = f'{{"name": "w", "{key}": {body}}}'
    text = {
        HERMES: f"<tool_call>\n{written}\n</tool_call>",
        MISTRAL: f"[TOOL_CALLS][{written}]",
        LLAMA: written,
        ARRAY: f"[{written}]",
    }[syntax]
    assert read(syntax, text) == call("w", body)


def test_templates_are_known_by_their_markers() -> None:
    assert syntax_of_template("… within <tool_call></tool_call> XML tags …") is HERMES
    assert syntax_of_template("{{ '[TOOL_CALLS]' }}") is MISTRAL
    assert syntax_of_template("{{ messages }}") is None
