"""Which grammars are expected to compile quickly."""

from __future__ import annotations

import json

import pytest

from benchmarks.chaos.attacks.requests import hard_grammar
from server.protocol.structured_outputs import Grammar, GrammarKind
from server.structured_output.grammar_difficulty import is_simple

SIMPLE = {
    "a choice": Grammar(GrammarKind.CHOICE, json.dumps([f"value {index}" for index in range(1000)])),
    "a small pattern": Grammar(GrammarKind.REGEX, r"\d{4}-\d{2}-\d{2}"),
    "a schema of many fields": Grammar(
        GrammarKind.JSON_SCHEMA,
        json.dumps({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(200)}}),
    ),
    "a small grammar": Grammar(GrammarKind.LARK, 'start: "a" | /[0-9]+/'),
}
HARD = {
    "remainders in Lark": Grammar(GrammarKind.LARK, hard_grammar(0)),
    "intersections": Grammar(GrammarKind.LARK, "start: A\nA: /.*a.{9}/ & /.*b.{9}/"),
    "remainders": Grammar(GrammarKind.JSON_SCHEMA, '{"type":"integer","multipleOf":9973}'),
    "a long pattern": Grammar(GrammarKind.REGEX, "a|" * 2000),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_simple(name: str) -> None:
    assert is_simple(SIMPLE[name])


@pytest.mark.parametrize("name", HARD)
def test_hard(name: str) -> None:
    assert not is_simple(HARD[name])
