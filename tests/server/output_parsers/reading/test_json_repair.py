"""JSON as models write it becomes valid JSON, and valid JSON stays as it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.output_parsers.reading.json_repair import NotJson, is_whole_object, repaired

CHARS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | CHARS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(CHARS, part, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_valid_json_stays_as_it_is(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert repaired(text) == text


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('{"a": "x\ny\t\x01"}', '{"a": "x\\ny\\t\\u0001"}'),
        ("[NaN, Infinity, -Infinity, 1e400, -1e400]", "[null, null, null, null, null]"),
        ('{"a": [1, 2,], "b": {"c": 1,},}', '{"a": [1, 2], "b": {"c": 1}}'),
        ("[True, False, None]", "[true, false, null]"),
        ("{'a': 'it\\'s \"x\"'}", '{"a": "it\'s \\"x\\""}'),
        ("[+5, .5, 5., 007, -0]", "[5, 0.5, 5, 7, -0]"),
        ('"\\ud800 \\udc00 \\ud83d\\ude00 \\ud83dx"', '"\\ufffd \\ufffd \\ud83d\\ude00 \\ufffdx"'),
        ('"\\x41 \\d \\u12"', '"\\\\x41 \\\\d \\\\u12"'),
        ('{a: 1, b_2: "x"}', '{"a": 1, "b_2": "x"}'),
        ('{"a": 1 "b": ["c" {"d": 2}]}', '{"a": 1 ,"b": ["c" ,{"d": 2}]}'),
        ('{"a": 1]', '{"a": 1}'),
        ('{"a": [1, {"b": 2}}', '{"a": [1, {"b": 2}]}'),
        ('{“a”: „b“, "c": “say "d"”}', '{"a": "b", "c": "say \\"d\\""}'),
        ('{"a": "env.get("KEY", "default")", "b": 1}', '{"a": "env.get(\\"KEY\\", \\"default\\")", "b": 1}'),
        ('["say "hi" to", "me"]', '["say \\"hi\\" to", "me"]'),
        ("{'a': 'O'Brien'}", '{"a": "O\'Brien"}'),
        ('{"a": "x" , "b": "y" "c": "z"}', '{"a": "x" , "b": "y" ,"c": "z"}'),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
    ],
)
def test_what_models_write_is_repaired(written: str, meant: str) -> None:
    assert repaired(written) == meant
    json.loads(meant)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "{a 1}", "[1 2]", '{"a" 1}', "[,]", "{,}", "1 2", "abc", "]", '["x', "[" * 300 + "]" * 300,
        '{"a": "x" "}," !',
    ],
)  # fmt: skip
def test_what_cannot_be_json_is_refused(text: str) -> None:
    with pytest.raises(NotJson):
        repaired(text)


@given(st.text(alphabet="{}[]\",:\\u0dx1eE.+- \n'tN", max_size=30))
def test_whatever_comes_out_is_json(text: str) -> None:
    try:
        written = repaired(text)
    except NotJson:
        return
    json.loads(written, parse_constant=pytest.fail)


def test_an_object_is_whole_or_cut() -> None:
    assert [is_whole_object(text) for text in ('{"a": 1}', "{}", '{"a": 1', "[1]", "")] == [
        True,
        True,
        False,
        False,
        False,
    ]
