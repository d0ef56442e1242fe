"""Keywords that llguidance does not know are enforced as a validator of JSON Schema reads them."""

from __future__ import annotations

import json
import random
import re
import time
from itertools import product
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from server.protocol.structured_outputs import Grammar, GrammarKind
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_limits import InvalidGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from server.structured_output.schemas.keyword_rewriting import with_known_keywords
from server.structured_output.schemas.pattern_writer import negated_patterns, without_look_around
from server.structured_output.schemas.regular_expression import UnknownPattern
from tests.fakes.grammar_walk import MergedBytes, allowed_tokens, random_text

VOCAB_SIZE = MergedBytes.vocab_size
VOCABULARY = GrammarVocabulary(MergedBytes(), VOCAB_SIZE)


def compiled(schema: Any, *, closes: bool = False) -> CompiledGrammar:
    return CompiledGrammar.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema), closes), VOCABULARY)


def accepts(grammar: CompiledGrammar, document: Any) -> bool:
    matcher = grammar.matcher()
    for byte in json.dumps(document).encode():
        if byte not in allowed_tokens(matcher, VOCAB_SIZE):
            return False
        matcher.accept(byte)
    return MergedBytes.eos_token_ids[0] in allowed_tokens(matcher, VOCAB_SIZE)


CASES: dict[str, tuple[Any, list[Any]]] = {
    "not const": ({"not": {"const": "a"}}, [1, "a", "b", "aa", "", None, {}, []]),
    "not enum": (
        {"type": ["string", "integer"], "not": {"enum": ["red", "green", 3]}},
        ["red", "re", "reds", "green", "", 3, 4, 2, "x"],
    ),
    "not number": ({"type": "number", "not": {"const": 5}}, [5, 5.0, 4.9, 5.1, 6, -5]),
    "not type": ({"not": {"type": ["string", "null"]}}, ["a", None, 1, [], {}, True]),
    "not integer among others": ({"type": ["string", "integer"], "not": {"type": "integer"}}, ["a", 1]),
    "not required": ({"type": "object", "not": {"required": ["a"]}}, [{}, {"a": 1}, {"b": 1}]),
    "not all of several": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "additionalProperties": False,
            "not": {"required": ["a", "b"]},
        },
        [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}],
    ),
    "not pattern": ({"type": "string", "not": {"pattern": "^x-"}}, ["x-a", "xa", "", "x", "ax-"]),
    "not anyOf": (
        {"type": "string", "not": {"anyOf": [{"pattern": "foo"}, {"minLength": 5}]}},
        ["foo", "fo", "afoo", "abcd", "abcde"],
    ),
    "if": (
        {
            "type": "object",
            "properties": {"k": {"enum": ["a", "b"]}, "x": {"type": "integer"}, "y": {"type": "integer"}},
            "required": ["k"],
            "additionalProperties": False,
            "if": {"properties": {"k": {"const": "a"}}},
            "then": {"required": ["x"]},
            "else": {"required": ["y"]},
        },
        [
            {"k": "a"},
            {"k": "a", "x": 1},
            {"k": "b", "x": 1},
            {"k": "b", "y": 1},
            {"k": "b", "x": 1, "y": 1},
            {"k": "a", "y": 1},
        ],
    ),
    "if with required": (
        {
            "type": "object",
            "properties": {"k": {"type": "string"}, "x": {"type": "integer"}},
            "additionalProperties": False,
            "if": {"properties": {"k": {"const": "a"}}, "required": ["k"]},
            "then": {"required": ["x"]},
        },
        [{}, {"k": "a"}, {"k": "a", "x": 1}, {"k": "b", "x": 1}, {"k": "b"}, {"k": ""}, {"x": 1}],
    ),
    "several if": (
        {
            "type": "object",
            "properties": {"k": {"enum": ["a", "b", "c"]}, "x": {"type": "integer"}, "y": {"type": "string"}},
            "required": ["k"],
            "additionalProperties": False,
            "allOf": [
                {"if": {"properties": {"k": {"const": "a"}}, "required": ["k"]}, "then": {"required": ["x"]}},
                {"if": {"properties": {"k": {"const": "b"}}, "required": ["k"]}, "then": {"required": ["y"]}},
            ],
        },
        [{"k": "a"}, {"k": "a", "x": 1}, {"k": "b", "x": 1}, {"k": "b", "y": "s"}, {"k": "c"}],
    ),
    "dependentRequired": (
        {
            "type": "object",
            "properties": {"card": {"type": "integer"}, "addr": {"type": "string"}},
            "additionalProperties": False,
            "dependentRequired": {"card": ["addr"]},
        },
        [{}, {"card": 1}, {"addr": "x"}, {"card": 1, "addr": "x"}],
    ),
    "dependentSchemas": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {}},
            "dependentSchemas": {"a": {"properties": {"b": {"type": "integer"}}, "required": ["b"]}},
        },
        [{}, {"a": 1}, {"a": 1, "b": 1}, {"a": 1, "b": "x"}, {"b": "x"}],
    ),
    "minProperties": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}},
            "additionalProperties": False,
            "minProperties": 2,
        },
        [{}, {"a": 1}, {"a": 1, "c": 1}, {"b": 1, "c": 2}, {"a": 1, "b": 1, "c": 1}],
    ),
    "maxProperties": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
            "maxProperties": 2,
        },
        [{}, {"a": 1}, {"a": 1, "c": 1}, {"b": 1, "c": 2}, {"a": 1, "b": 1, "c": 1}],
    ),
    "minProperties of an open object": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "minProperties": 1,
            "additionalProperties": {"type": "integer"},
        },
        [{}, {"a": 1}, {"z": 1}, {"a": 1, "z": 1}, {"z": "s"}],
    ),
    "both bounds of an open object": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "minProperties": 1,
            "maxProperties": 2,
            "additionalProperties": {"type": "integer"},
        },
        [
            {},
            {"a": 1},
            {"z": 1},
            {"a": 1, "z": 1},
            {"a": 1, "b": 1, "z": 1},
            {"y": 1, "z": 1},
            {"x": 1, "y": 1, "z": 1},
        ],
    ),
    "propertyNames of a list": (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}},
        [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"c": 1}, {"a": "x"}],
    ),
    "propertyNames of a pattern": (
        {
            "type": "object",
            "properties": {"xa": {"type": "integer"}, "b": {"type": "integer"}},
            "propertyNames": {"pattern": "^x"},
            "additionalProperties": {"type": "string"},
        },
        [{}, {"xa": 1}, {"b": 1}, {"xz": "s"}, {"z": "s"}, {"xz": 1}],
    ),
    "propertyNames of a length": (
        {"type": "object", "propertyNames": {"minLength": 2, "maxLength": 3}},
        [{}, {"a": 1}, {"ab": 1}, {"abc": []}, {"abcd": 1}],
    ),
    "propertyNames of any text": (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}},
        [{}, {"a": 1}, {"a": "x"}],
    ),
    "contains": (
        {"type": "array", "items": {"type": ["integer", "string"]}, "contains": {"type": "string"}, "maxItems": 3},
        [[], [1], ["a"], [1, "a"], [1, 2, "a"], [1, 2, 3], ["a", "b"]],
    ),
    "uniqueItems of a list": (
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
        [[], ["a"], ["a", "b"], ["a", "a"], ["c", "b", "a"], ["c", "b", "c"]],
    ),
    "uniqueItems false": ({"type": "array", "items": {"type": "integer"}, "uniqueItems": False}, [[], [1, 1]]),
    "uniqueItems of one": (
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 1},
        [[], [1], [1, 1]],
    ),
    "oneOf of lengths": ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 2}]}, ["", "ab", "abc"]),
    "oneOf of required": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "additionalProperties": False,
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
    ),
    "oneOf of references": (
        {
            "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
            "$defs": {
                "A": {
                    "type": "object",
                    "properties": {"t": {"const": "a"}, "x": {"type": "integer"}},
                    "required": ["t"],
                    "additionalProperties": False,
                },
                "B": {
                    "type": "object",
                    "properties": {"t": {"const": "b"}, "y": {"type": "integer"}},
                    "required": ["t"],
                    "additionalProperties": False,
                },
            },
        },
        [{"t": "a"}, {"t": "b"}, {"t": "a", "x": 1}, {"t": "a", "y": 1}, {"t": "c"}],
    ),
    "oneOf of bounds": (
        {"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 7}]},
        [1, 3, 5, 7, 9],
    ),
    "look-aheads": (
        {"type": "string", "pattern": "^(?=.*[a-z])(?=.*[A-Z])(?=.*\\d).{4,}$"},
        ["aB3x", "aB3", "abcd", "ABC3", "aaaaB3"],
    ),
    "negative look-ahead": (
        {"type": "string", "pattern": "^(?!admin|root).+$"},
        ["admin", "admi", "roots", "x", "adminx", "aroot", ""],
    ),
    "negative look-ahead anywhere": (
        {"type": "string", "pattern": "^(?!.*--)[a-z-]+$"},
        ["a-b", "a--b", "-", "--", ""],
    ),
    "look-ahead in the midst": ({"type": "string", "pattern": "^a(?!b)[a-c]*$"}, ["a", "ab", "ac", "acb", "aab"]),
    "look-behind": ({"type": "string", "pattern": "^[a-z.]*(?<!\\.)$"}, ["a", "a.", "a.b", "."]),
    "look-ahead without anchors": (
        {"type": "string", "pattern": "foo(?=bar)"},
        ["foobar", "foo", "xfoobary", "foobaz"],
    ),
    "look-ahead of an end": ({"type": "string", "pattern": "^(?!\\s*$).+"}, ["", "  ", " a", "a"]),
    "if of a bound": (
        {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "u": {"type": "boolean"}},
            "additionalProperties": False,
            "if": {"properties": {"n": {"minimum": 10}}, "required": ["n"]},
            "then": {"properties": {"u": {"const": True}}, "required": ["u"]},
        },
        [{}, {"n": 9}, {"n": 10}, {"n": 10, "u": True}, {"n": 10, "u": False}, {"u": False}],
    ),
    "not not": ({"not": {"not": {"type": "string"}}}, ["a", 1]),
    "overlapping patternProperties": (
        {
            "type": "object",
            "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": ["integer", "string"]}},
            "properties": {"ab": {"maximum": 3}},
            "additionalProperties": False,
        },
        [{}, {"a": 1}, {"a": "s"}, {"xb": "s"}, {"ab": 1}, {"ab": "s"}, {"ab": 5}, {"axb": "s"}, {"axb": 1}, {"x": 1}],
    ),
}


@pytest.mark.parametrize(("schema", "documents"), CASES.values(), ids=CASES.keys())
def test_a_grammar_accepts_what_a_validator_accepts(schema: Any, documents: list[Any]) -> None:
    grammar, validator = compiled(schema), Draft202012Validator(schema)
    verdicts = {json.dumps(document): validator.is_valid(document) for document in documents}
    assert {json.dumps(document): accepts(grammar, document) for document in documents} == verdicts
    assert len(set(verdicts.values())) == 2 or "false" in json.dumps(schema)


LONG = ("look-ahead without anchors", "overlapping patternProperties")  # a random text of these hardly ends


@pytest.mark.parametrize("name", [name for name in CASES if name not in LONG])
def test_what_a_grammar_writes_is_valid(name: str) -> None:
    schema = CASES[name][0]
    grammar, validator = compiled(schema), Draft202012Validator(schema)
    for seed in (4, 7):
        validator.validate(json.loads(random_text(grammar.matcher(), MergedBytes(), VOCAB_SIZE, seed)))


REFUSED = [
    ({"not": {"multipleOf": 3}}, "not"),
    ({"not": {"type": "integer"}}, "not"),
    ({"type": "array", "contains": {"type": "integer"}}, "contains"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "object", "properties": {f"p{at}": {} for at in range(12)}, "minProperties": 6}, "min/maxProperties"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"type": "object", "propertyNames": {"format": "email"}}, "propertyNames"),
    ({"properties": {"q": {"if": {"items": {"type": "string"}}, "then": {"maxItems": 1}}}}, "properties.q"),
    ({"type": "string", "pattern": "^(?!.*a.{50}b)x"}, "look-around"),
]


@pytest.mark.parametrize(("schema", "words"), REFUSED)
def test_what_cannot_be_said_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(InvalidGrammar, match=words):
        compiled(schema)


def test_references_that_stand_for_very_many_schemas_are_compared_for_a_while_only() -> None:
    schema = {
        "$defs": {
            **{
                f"{kind}{at}": {"anyOf": [{"$ref": f"#/$defs/{kind}{at + 1}"}] * 3} for kind in "de" for at in range(30)
            },
            "d30": {"type": "integer"},
            "e30": {"type": "string"},
        },
        "oneOf": [{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/e0"}],
    }
    before = time.process_time()
    with_known_keywords(schema)
    assert time.process_time() - before < 1.5


WRONG: list[dict[str, Any]] = [
    {"minProperties": 1, "properties": {"a": {}}, "required": [["a"]]},
    {"maxProperties": 1, "properties": {"a": {}}, "required": [{}]},
    {"propertyNames": 5},
    {"propertyNames": "a"},
    {"propertyNames": [1]},
    {"propertyNames": {"enum": 5}},
    {"propertyNames": {"pattern": 5}, "properties": {"a": {}}},
    {"dependentRequired": {"a": 5}},
    {"dependencies": {"a": "b"}},
    {"not": {"type": ["string", ["a"]]}},
    {"if": 5, "then": 5},
    {"contains": {}, "maxItems": "a"},
    {"oneOf": [{"required": [[1]], "type": "object"}, {"required": [5], "type": "object"}]},
    {"allOf": 5, "not": {"type": "string"}},
    {"patternProperties": {"a": 5, "b": 6}},
    {"pattern": "(?="},
]


@pytest.mark.parametrize("schema", WRONG)
def test_keywords_with_wrong_values_are_left_to_the_grammar_library(schema: dict[str, Any]) -> None:
    json.dumps(with_known_keywords(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "propertyNames": 5},
        {"type": "object", "properties": {"a": {}}, "anyOf": 5},
        {"type": "object", "properties": {"a": {"allOf": True}}},
        {"type": "integer", "multipleOf": True},
        {"not": {"minLength": 1e300}},
    ],
)
def test_a_schema_with_a_wrong_keyword_is_refused_as_one(schema: dict[str, Any]) -> None:
    for closes in (False, True):
        with pytest.raises(InvalidGrammar):
            compiled(schema, closes=closes)


@pytest.mark.parametrize("name", ["if", "not", "type", "minContains", "oneOf"])
def test_names_of_dependent_properties_are_no_keywords(name: str) -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"}, "b": {"type": "integer"}},
        "additionalProperties": False,
        "dependentRequired": {name: ["b"]},
    }
    grammar = compiled(schema)
    documents: list[dict[str, int]] = [{}, {"b": 1}, {name: 1, "b": 1}, {name: 1}]
    assert [accepts(grammar, document) for document in documents] == [True, True, True, False]


@pytest.mark.parametrize("least", [3, 10**15, 1e300])
def test_more_properties_than_there_are_cannot_be_had(least: float) -> None:
    before = time.process_time()
    for closed, accepted in ((True, False), (False, least == 3)):
        schema = {"properties": {"a": {}, "b": {}}, "additionalProperties": not closed, "minProperties": least}
        assert Draft202012Validator(with_known_keywords(schema)).is_valid({"a": 1, "b": 1, "c": 1}) == accepted
    assert time.process_time() - before < 0.5


def test_very_many_listed_values_are_not_compared_with_each_other() -> None:
    schema = {"uniqueItems": True, "items": {"enum": list(range(5000))}}
    before = time.process_time()
    with_known_keywords(schema)
    assert time.process_time() - before < 0.5


USER = {
    "type": "object",
    "properties": {"role": {"enum": ["a", "g"]}, "name": {"type": "string"}},
    "required": ["role"],
}


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        ({"type": "object", "properties": {"card": {"type": "integer"}}, "dependentRequired": {"card": ["city"]}},
         [{}, {"card": 1, "city": "x"}], [{"card": 1}, {"other": 1}]),
        ({"type": "object", "properties": {"a": {"type": "integer"}},
          "dependentSchemas": {"a": {"properties": {"b": {"type": "integer"}}, "required": ["b"]}}},
         [{}, {"a": 1, "b": 1}], [{"a": 1}, {"other": 1}]),
        ({"type": "object", "properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"],
          "if": {"properties": {"kind": {"const": "a"}}}, "then": {"properties": {"y": {"type": "integer"}},
          "required": ["y"]}, "else": {}},
         [{"kind": "b"}, {"kind": "a", "y": 1}], [{"kind": "a"}, {"kind": "b", "other": 1}]),
        ({"type": "object", "properties": {"user": USER, "key": {"type": "string"}}, "required": ["user"],
          "if": {"properties": {"user": {"properties": {"role": {"const": "a"}}}}}, "then": {"required": ["key"]}},
         [{"user": {"role": "a", "name": "x"}, "key": "k"}, {"user": {"role": "g", "name": "x"}}],
         [{"user": {"role": "a", "name": "x"}}, {"user": {"role": "g", "other": 1}}]),
    ],
)  # fmt: skip
def test_objects_with_conditions_are_closed_as_others_are(schema: Any, accepted: list[Any], refused: list[Any]) -> None:
    grammar = compiled(schema, closes=True)
    assert [document for document in [*accepted, *refused] if accepts(grammar, document)] == accepted


PIECES = [
    "a",
    "b",
    "ab",
    ".",
    ".*",
    "[^a]",
    "(?:a|b)",
    "b?",
    "a+",
    "(?=a)",
    "(?!b)",
    "(?=.*b)",
    "(?!.*ab)",
    "(?:a(?!b)|b)",
]


@pytest.mark.parametrize("seed", range(30))
def test_patterns_with_look_arounds_match_what_they_match_elsewhere(seed: int) -> None:
    rng = random.Random(seed)
    pattern = "".join(rng.choice(PIECES) for _ in range(rng.randint(2, 5)))
    pattern = f"{rng.choice(['', '^'])}{pattern}{rng.choice(['', '(?<=b)', '(?<!ab)'])}{rng.choice(['', '$'])}"
    searched = re.compile(pattern.removesuffix("$") + (r"\Z" if pattern.endswith("$") else ""))
    for written, is_negative in ((without_look_around, False), (negated_patterns, True)):
        try:
            found = [re.compile(f"{python(each).removesuffix('$')}\\Z") for each in written(pattern)]
        except UnknownPattern:
            continue
        for text in ("".join(letters) for size in range(5) for letters in product("abc", repeat=size)):
            assert all(each.match(text) for each in found) == (bool(searched.search(text)) != is_negative), (
                pattern,
                text,
            )


def python(pattern: str) -> str:
    """A pattern with characters as Python writes them."""
    return re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: re.escape(chr(int(found[1], 16))), pattern)
