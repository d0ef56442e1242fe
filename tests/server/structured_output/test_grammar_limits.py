from __future__ import annotations

import json
from typing import Any

import pytest

from server.structured_output import grammar_limits
from server.structured_output.grammar_limits import (
    MAX_ALTERNATIVES,
    MAX_DEPTH,
    MAX_GBNF_RULES,
    InvalidGrammar,
    check_gbnf,
    check_lark,
    check_schema,
)


def patterns(number: int) -> list[dict[str, Any]]:
    return [{"type": "string", "pattern": f"a{index}"} for index in range(number)]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"allOf": patterns(8)},
        {"anyOf": patterns(500)},
        {"type": "object", "properties": {f"p{index}": part for index, part in enumerate(patterns(500))}},
        {"properties": {"allOf": {}, "pattern": {"type": "string"}, "$ref": {}, "enum": {}}},
        {"enum": [{"allOf": patterns(20)}]},
        {"default": {"pattern": "x", "format": "y"}},
        {"multipleOf": 9999},
        {"multipleOf": 0.01},
        {"enum": [-(2**53), 2**53, 0.1, -0.0, True, None, "9007199254740993"]},
        {"minimum": -(2**63), "maximum": 2**63 - 1},
        {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"},
        {"allOf": [{"anyOf": [{"$ref": "#"}, True]}]},
        {"$ref": "#/$defs/none"},
        {"properties": {"a/b": {"pattern": "x"}}, "$ref": "#/properties/a~1b"},
        nested(MAX_DEPTH - 1),
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_usual_schemas_are_allowed(schema: Any) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": patterns(9)},
        {"allOf": [{"allOf": patterns(5)}, {"allOf": patterns(5)}]},
        {"allOf": [{"properties": {"a": part}} for part in patterns(9)]},
        {"$defs": {"a": {"allOf": patterns(8)}}, "properties": {"x": {"$ref": "#/$defs/a", "pattern": "y"}}},
        {"$defs": {"a": {"$anchor": "here", "allOf": patterns(9)}}, "$ref": "#here"},
        {"anyOf": [{"allOf": patterns(5)}], "allOf": patterns(5)},
        {"patternProperties": {f"^x{index}-": {} for index in range(9)}},
        {"multipleOf": 10001},
        {"multipleOf": 0.00001},
        {"allOf": [{"multipleOf": number} for number in (7, 11, 13, 17, 19, 23)]},
        {"properties": {"allOf": {"allOf": patterns(9)}}},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_schemas_that_intersect_too_much_are_refused(schema: Any) -> None:
    with pytest.raises(InvalidGrammar, match="limit is 8"):
        check_schema(schema)


def test_a_too_long_chain_of_references_is_refused() -> None:
    chain = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(1000)}
    with pytest.raises(InvalidGrammar, match="too long a chain"):
        check_schema({"$defs": chain, "$ref": "#/$defs/d0"})


@pytest.mark.parametrize("number", [-(2**63), 1 - 2**63, -(2**64), 2**53 + 1, 2**64, 1e300])
def test_a_too_large_constant_is_refused(number: float) -> None:
    """llguidance would recurse at -2^63 until the process ends."""
    for schema in ({"const": number}, {"enum": ["a", {"b": [number]}]}, {"default": {"const": {"maximum": number}}}):
        with pytest.raises(InvalidGrammar, match=r"(const|enum) has the number .* 2\^53"):
            check_schema(schema)
    with pytest.raises(InvalidGrammar, match="const has the number"):
        check_lark(f'start: %json {{"properties": {{"a": {{"const": {number!r}}}}}}}')


@pytest.mark.parametrize(
    ("keyword", "number"),
    [("maximum", -(2**63)), ("exclusiveMaximum", -1e19), ("minimum", 2**53 + 1), ("exclusiveMinimum", 1e19)],
)
def test_a_range_of_too_large_numbers_is_refused(keyword: str, number: float) -> None:
    with pytest.raises(InvalidGrammar, match=rf"{keyword} has the number .* 2\^53"):
        check_schema({"allOf": [{"type": "integer"}, {keyword: number}]})
    check_schema({keyword: -number})


def test_references_that_are_not_pointers_look_at_all_schemas_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    look = grammar_limits._parts
    monkeypatch.setattr(grammar_limits, "_parts", lambda node: looks.append(node) or look(node))
    check_schema({"$defs": {"a": {"$anchor": "here", "pattern": "x"}}, "anyOf": [{"$ref": "#here"} for _ in range(50)]})
    assert len(looks) == 1


def test_a_too_deep_schema_is_refused() -> None:
    with pytest.raises(InvalidGrammar, match="more than 100 levels deep"):
        check_schema(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize(
    "text",
    [
        'start: "<" /[&~<|]/ "~" // a comment with & < ~',
        'start: "\\"<" # and "this" <too>',
        'start: %json {"enum": ["<", "&"]}',
        "start: A\nA: /a/ & /b/ & ~/c/",
        "start: " + " | ".join(['"|"'] * 2000),
        "start: " + "(A B)* " * 1000 + '\nA: /a*b+c?/\nB: "*"',
        "start: %json " + json.dumps({"enum": [{"*": "?"} for _ in range(1200)]}),
    ],
)
def test_usual_lark_grammars_are_allowed(text: str) -> None:
    check_lark(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("start: <|im_end|>", "angle brackets"),
        ('start: "a" <[5]>', "angle brackets"),
        ('%llguidance {"allow_invalid_utf8": true}', "%llguidance is not supported"),
        ("start: A\nA: " + " & ".join(["/.*a.*/"] * 10), "9 times & or ~"),
        ("start: " + "|".join(['"a"'] * (MAX_ALTERNATIVES + 2)), "2001 times |"),
        ("start: " + "A* B+ C? D{ 2, 3} " * 251, "1004 times *, +, ? or {n}"),
        ("start: %json " + json.dumps({"allOf": patterns(9)}), "weight 9.0"),
        ('start: %json {"type": ', "%json is not followed by valid JSON"),
        ("start: %json " + "[" * 100_000, "levels deep"),
    ],
)
def test_dangerous_lark_grammars_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidGrammar) as refusal:
        check_lark(text)
    assert words in str(refusal.value)


@pytest.mark.parametrize("text", ['"\\' * 300_000, "/\\" * 300_000, '"' * 600_000, "\n" * 600_000])
def test_odd_texts_are_checked_in_linear_time(text: str) -> None:
    check_lark(text)


def test_a_gbnf_grammar_with_too_many_rules_is_refused() -> None:
    rule = 'r ::= "a"\n'
    check_gbnf(rule * MAX_GBNF_RULES)
    with pytest.raises(InvalidGrammar, match="501 times ::="):
        check_gbnf(rule * (MAX_GBNF_RULES + 1))
