"""Objects are closed unless their schema says otherwise, and numbers end: every output can come to its end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.output_parsers.families.json_formats import HERMES, LLAMA, MISTRAL, QWEN_CODER
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.tool_call_lark import LarkMarkers, calls_or_form
from server.protocol.structured_outputs import Grammar, GrammarKind
from server.protocol.tools import ForcedCalls, FunctionDefinition
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_limits import InvalidGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from tests.fakes.grammar_walk import MergedBytes, allowed_tokens

VOCABULARY = GrammarVocabulary(MergedBytes(), MergedBytes.vocab_size)
END = MergedBytes.eos_token_ids[0]
A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}


def grammar_of(schema: Any, *, closes: bool = True) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema), closes)


def matches(grammar: Grammar, text: str) -> bool:
    matcher = CompiledGrammar.compile(grammar, VOCABULARY).matcher()
    for byte in text.encode():
        if byte not in allowed_tokens(matcher, MergedBytes.vocab_size):
            return False
        matcher.accept(byte)
    return END in allowed_tokens(matcher, MergedBytes.vocab_size)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (A, '{"a": 1}', '{"a": 1, "b": 2}'),
        ({"type": "object", "properties": {}}, "{}", '{"a": 1}'),
        ({"type": "array", "items": A}, '[{"a": 1}]', '[{"a": 1, "b": 2}]'),
        ({"allOf": [A, B]}, '{"a": 1, "b": 2}', '{"a": 1, "b": 2, "c": 3}'),
        ({"anyOf": [A, B]}, '{"b": 1}', '{"a": 1, "b": 2}'),
        ({"$defs": {"A": A}, "allOf": [{"$ref": "#/$defs/A"}], **B}, '{"a": 1, "b": 2}', '{"a": 1, "b": 2, "c": 3}'),
        ({"$defs": {"A": A}, "$ref": "#/$defs/A"}, '{"a": 1}', '{"a": 1, "b": 2}'),
        ({**A, "properties": {"a": {"$ref": "#"}}, "required": []}, '{"a": {"a": {}}}', '{"a": {"b": {}}}'),
        ({**A, "required": ["a", "z"]}, '{"a": 1, "z": "x"}', '{"a": 1, "z": 2, "y": 3}'),
    ],
)
def test_objects_are_closed_by_default(schema: Any, right: str, wrong: str) -> None:
    assert matches(grammar_of(schema), right)
    assert not matches(grammar_of(schema), wrong)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object"}, '{"x": 1}'),
        ({**A, "additionalProperties": True}, '{"a": 1, "x": 2}'),
        ({"allOf": [A, {**B, "additionalProperties": {"type": "integer"}}]}, '{"a": 1, "b": 2, "x": 3}'),
    ],
)
def test_an_object_that_says_so_is_open(schema: Any, text: str) -> None:
    assert matches(grammar_of(schema), text)


def test_the_letter_of_the_schema_can_be_asked_for() -> None:
    assert matches(grammar_of(A, closes=False), '{"a": 1, "b": 2}')


@pytest.mark.parametrize(
    ("schema", "begun"),
    [({"type": "number"}, ""), ({"type": "number"}, "1."), ({"type": "integer"}, "-"), ({}, '{"a": [1, '), ({}, "2e")],
)
def test_a_number_has_an_end(schema: Any, begun: str) -> None:
    matcher = CompiledGrammar.compile(grammar_of(schema), VOCABULARY).matcher()
    for byte in begun.encode():
        matcher.accept(byte)
    num_digits = 0
    while ord("7") in allowed_tokens(matcher.copy(), MergedBytes.vocab_size):
        matcher.accept(ord("7"))
        num_digits += 1
        assert num_digits <= 19
    assert num_digits >= 19


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"type": "string", "pattern": "^[0-9]{40}$"}, {"enum": [10**15]}]
)
def test_digits_that_are_no_endless_number_are_left_alone(schema: Any) -> None:
    text = f'"{"1" * 40}"' if "type" in schema else str(10**15)
    assert matches(grammar_of(schema), text)


@pytest.mark.parametrize("name", ["my schema", "person", "#x", "https://a.example/b.json", ""])
def test_a_schema_may_have_any_id(name: str) -> None:
    schema = {"$id": name, **A, "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    assert matches(grammar_of(schema), '{"a": 1}')


@pytest.mark.parametrize("pattern", ["\\", "abc\\", "(?x)a b"])
def test_patterns_are_checked_as_regular_expressions_are(pattern: str) -> None:
    for schema in ({"type": "string", "pattern": pattern}, {"type": "object", "patternProperties": {pattern: {}}}):
        with pytest.raises(InvalidGrammar):
            CompiledGrammar.compile(grammar_of(schema), VOCABULARY)


def test_an_error_names_the_tool_and_the_place() -> None:
    bad = {**A, "properties": {"a": {"type": "array", "items": {"type": "string", "pattern": "((?=x).)*"}}}}
    with pytest.raises(InvalidGrammar, match=r"^properties\.a\.items: look-around"):
        CompiledGrammar.compile(grammar_of(bad), VOCABULARY)
    tools = [FunctionDefinition(name="fine", parameters=A), FunctionDefinition(name="bad", parameters=bad)]
    with pytest.raises(InvalidGrammar, match=r"^the tool bad properties\.a\.items: look-around"):
        CompiledGrammar.compile(ForcedCalls(tools, 2).to_grammar(), VOCABULARY)


@pytest.mark.parametrize("syntax", [HERMES, LLAMA, MISTRAL, QWEN_CODER], ids=lambda syntax: syntax.name)
def test_an_answer_is_a_call_or_has_the_form(syntax: ToolCallSyntax) -> None:
    tools = [FunctionDefinition(name="w", parameters={**A, "properties": {"a": {"enum": ["Oslo"]}}})]
    grammar = calls_or_form(grammar_of(B), syntax, tools, 4, LarkMarkers({}))
    assert grammar is not None
    call = '{"name": "w", "arguments": {"a": "Oslo"}}'
    assert matches(grammar, '{"b": 1}')
    assert matches(grammar, call)
    for wrong in ("Hello", '{"c": 1}', call.replace("Oslo", "Bonn"), call.replace('"w"', '"x"')):
        assert not matches(grammar, wrong)
    if syntax is HERMES:
        assert matches(grammar, f"<tool_call>\n{call}\n</tool_call>\n<tool_call>{call}</tool_call>")
