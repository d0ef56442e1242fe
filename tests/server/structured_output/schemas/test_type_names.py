"""Schemas with the types of other languages mean JSON Schema's, and lists of values do not contradict types."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.protocol.structured_outputs import Grammar, GrammarKind
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_limits import InvalidGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from server.structured_output.schemas.type_names import FORMATS, with_known_types
from tests.fakes.grammar_walk import MergedBytes, allowed_tokens, random_text


@pytest.mark.parametrize(
    ("schema", "known"),
    [
        ({"type": "dict", "properties": {"type": {"type": "float"}}},
         {"type": "object", "properties": {"type": {"type": "number"}}}),
        ({"type": "STRING", "default": {"type": "dict"}}, {"type": "string", "default": {"type": "dict"}}),
        ({"type": "tuple", "items": {"type": "Any"}}, {"type": "array", "items": {}}),
        ({"type": ["str", "none"]}, {"type": ["string", "null"]}),
        ({"type": ["str", "any"]}, {}),
        ({"anyOf": [{"type": "long"}, {"type": "HashMap"}]}, {"anyOf": [{"type": "integer"}, {"type": "object"}]}),
        ({"type": "array", "items": {"type": "string"}, "enum": ["a", "b"]},
         {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}),
        ({"type": "integer", "enum": ["1", "2"]}, {"enum": ["1", "2"]}),
        ({"type": "integer", "enum": ["1", 2]}, {"type": "integer", "enum": ["1", 2]}),
        ({"type": "array", "enum": [[1]]}, {"type": "array", "enum": [[1]]}),
        ({"type": ""}, {}),
        ({"properties": {"format": {"type": "string", "format": "uri-template"}, "d": {"format": "date"}}},
         {"properties": {"format": {"type": "string"}, "d": {"format": "date"}}}),
        ({"type": "strnig"}, {"type": "strnig"}),
    ],
)  # fmt: skip
def test_types_are_json_schemas_own(schema: dict[str, Any], known: dict[str, Any]) -> None:
    assert with_known_types(schema) == known


def test_a_schema_in_pythons_types_compiles_and_is_followed() -> None:
    schema = {
        "type": "dict",
        "properties": {
            "n": {"type": "float"},
            "kinds": {"type": "array", "items": {"type": "string"}, "enum": ["a", "b"], "maxItems": 2},
            "count": {"type": "integer", "enum": ["1", "2"]},
        },
        "required": ["n", "kinds", "count"],
    }
    vocabulary = GrammarVocabulary(MergedBytes(), MergedBytes.vocab_size)
    compiled = CompiledGrammar.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)), vocabulary)
    for seed in range(8):
        made = json.loads(random_text(compiled.matcher(), MergedBytes(), MergedBytes.vocab_size, seed))
        assert set(made) == {"n", "kinds", "count"}
        assert isinstance(made["n"], int | float)
        assert set(made["kinds"]) <= {"a", "b"}
        assert made["count"] in ("1", "2")


def test_a_name_that_says_nothing_is_refused() -> None:
    vocabulary = GrammarVocabulary(MergedBytes(), MergedBytes.vocab_size)
    with pytest.raises(InvalidGrammar, match="strnig"):
        CompiledGrammar.compile(Grammar(GrammarKind.JSON_SCHEMA, '{"type": "strnig"}'), vocabulary)


@pytest.mark.parametrize("name", [*FORMATS, "int32", "binary", "uri-reference"])
def test_formats_of_texts_are_enforced_or_say_nothing(name: str) -> None:
    vocabulary = GrammarVocabulary(MergedBytes(), MergedBytes.vocab_size)
    schema = json.dumps({"type": "string", "format": name})
    compiled = CompiledGrammar.compile(Grammar(GrammarKind.JSON_SCHEMA, schema), vocabulary)
    matcher = compiled.matcher()
    for byte in b'"!':  # no text of a known format begins like that
        is_allowed = byte in allowed_tokens(matcher, MergedBytes.vocab_size)
        if is_allowed:
            matcher.accept(byte)
    assert is_allowed == (name not in (*FORMATS[:4], *FORMATS[5:]))  # an address may begin with anything
