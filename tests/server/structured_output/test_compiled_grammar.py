"""Texts that are sampled at random from a grammar always match what was asked for."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest

from server.api.openai.completion_request import CompletionRequest
from server.protocol.structured_outputs import Grammar, GrammarKind
from server.structured_output import compiled_grammar
from server.structured_output.compiled_grammar import LARGE_BYTES, CompiledGrammar, start_freeing, to_lark
from server.structured_output.grammar_limits import InvalidGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from server.text.text_model import TextModel
from tests.fakes.grammar_walk import MergedBytes, allowed_tokens, random_text
from tests.patience import PATIENCE_S
from tests.server.support.structured_cases import STRUCTURED_CASES, StructuredCase

if TYPE_CHECKING:
    from llguidance import LLMatcher

VOCAB_SIZE = MergedBytes.vocab_size


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary(MergedBytes(), VOCAB_SIZE)


@pytest.fixture(scope="module")
def real_vocabulary(text_model: TextModel) -> GrammarVocabulary:
    return GrammarVocabulary(text_model.tokenizer, text_model.tokenizer.vocab_size)


def grammar_of(case: StructuredCase) -> Grammar:
    wish = CompletionRequest.parse({"prompt": "a", **case.parameters}).grammar_request
    grammar = None if wish is None else wish.to_grammar()
    assert grammar is not None
    return grammar


def json_schema(schema: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def matches(grammar: CompiledGrammar, text: str) -> bool:
    """Whether the grammar accepts `text`, byte by byte, as a whole output."""
    matcher = grammar.matcher()
    for byte in text.encode():
        if byte not in allowed_tokens(matcher, VOCAB_SIZE):
            return False
        matcher.accept(byte)
    return MergedBytes.eos_token_ids[0] in allowed_tokens(matcher, VOCAB_SIZE)


def test_there_are_at_least_forty_cases_of_different_names() -> None:
    assert len({case.name for case in STRUCTURED_CASES}) == len(STRUCTURED_CASES) >= 40


@pytest.mark.parametrize("case", STRUCTURED_CASES, ids=lambda case: case.name)
def test_every_output_is_what_was_asked_for(case: StructuredCase, vocabulary: GrammarVocabulary) -> None:
    compiled = CompiledGrammar.compile(grammar_of(case), vocabulary)
    for seed in range(8):
        case.check(random_text(compiled.matcher(), MergedBytes(), VOCAB_SIZE, seed))


@pytest.mark.parametrize("case", STRUCTURED_CASES, ids=lambda case: case.name)
def test_with_the_default_models_vocabulary(
    case: StructuredCase, real_vocabulary: GrammarVocabulary, text_model: TextModel
) -> None:
    compiled = CompiledGrammar.compile(grammar_of(case), real_vocabulary)
    for seed in (3, 5):
        case.check(random_text(compiled.matcher(), text_model.tokenizer, real_vocabulary.vocab_size, seed))


def test_at_the_end_all_end_tokens_and_nothing_else_are_allowed(vocabulary: GrammarVocabulary) -> None:
    matcher = CompiledGrammar.compile(Grammar(GrammarKind.REGEX, "ab?"), vocabulary).matcher()
    merged = MergedBytes.token_bytes.index(b"ab")
    assert allowed_tokens(matcher, VOCAB_SIZE).tolist() == [ord("a"), merged]
    matcher.accept(ord("a"))
    assert allowed_tokens(matcher, VOCAB_SIZE).tolist() == [ord("b"), 257, 259]
    matcher.accept(ord("b"))
    assert allowed_tokens(matcher, VOCAB_SIZE).tolist() == [257, 259]


def test_every_split_of_a_text_into_tokens_is_allowed(vocabulary: GrammarVocabulary) -> None:
    """This holds even if the grammar has only one text, and if the text is the name of a control token."""
    matcher = CompiledGrammar.compile(Grammar(GrammarKind.CHOICE, '["<|im_end|>"]'), vocabulary).matcher()
    assert allowed_tokens(matcher, VOCAB_SIZE).tolist() == [ord("<"), MergedBytes.token_bytes.index(b"<|")]


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"b":[1,2]}',
        '{"a": 1, "b": [1, 2]}',
        '{\n  "a": 1,\n  "b": [\n    1,\n    2\n  ]\n}',
        '{\r\n\t"a": 1\r\n}',
        "{}",
        "{ }",
    ],
)
def test_json_may_be_written_in_one_line_or_in_many(vocabulary: GrammarVocabulary, text: str) -> None:
    assert matches(CompiledGrammar.compile(json_schema({"type": "object"}), vocabulary), text)


@pytest.mark.parametrize(
    "text",
    ['{"a":  1}', '{"a":\n\n1}', '{"a":\n' + " " * 25 + "1}", '{"a":\n' + "\t" * 7 + "1}", ' {"a":1}', '{"a":1} '],
)
def test_json_has_no_endless_whitespace(vocabulary: GrammarVocabulary, text: str) -> None:
    assert not matches(CompiledGrammar.compile(json_schema({"type": "object"}), vocabulary), text)


@pytest.mark.parametrize("options", [{"lenient": True}, {"whitespace_pattern": " +"}, {}])
def test_a_schema_cannot_loosen_its_own_rules(vocabulary: GrammarVocabulary, options: dict[str, object]) -> None:
    with pytest.raises(InvalidGrammar, match="x-guidance is not supported"):
        CompiledGrammar.compile(json_schema({"type": "integer", "x-guidance": options}), vocabulary)


UNSATISFIABLE = [
    ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum (5) is greater than maximum (3)"),
    ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength (5) is greater than maxLength (2)"),
    ({"type": "array", "minItems": 3, "maxItems": 1}, "minItems (3) is greater than maxItems (1)"),
    ({"type": "string", "pattern": "^a{5}$", "maxLength": 2}, "Unsatisfiable"),
    ({"enum": []}, "Unsatisfiable"),
    ({"anyOf": []}, "Unsatisfiable"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible types"),
    ({"type": "object", "required": ["b"], "additionalProperties": False}, "required property 'b' is unsatisfiable"),
    (False, "schema is false"),
    (
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/a"}},
            "required": ["a"],
            "$defs": {"a": {"$ref": "#/$defs/a"}},
        },
        "nothing matches it: its reference",
    ),
    ({"$ref": "#"}, "nothing matches it"),
    ({"allOf": [{"$ref": "#"}]}, "nothing matches it"),
]

UNSUPPORTED = [
    ({"type": "array", "uniqueItems": True}, 'Unimplemented keys: ["uniqueItems"]'),
    ({"not": {"multipleOf": 3}}, 'Unimplemented keys: ["not"]'),
    ({"if": {"format": "date"}, "then": {"minLength": 3}}, 'Unimplemented keys: ["if", "then"]'),
    ({"type": "object", "propertyNames": {"format": "date"}}, "propertyNames"),
    ({"type": "array", "contains": {"type": "integer"}}, "contains"),
    ({"type": "string", "pattern": "^((?=a).)*$"}, "look-around"),
    ({"type": "string", "pattern": "["}, "unclosed character class"),
    ({"type": "objct"}, "Invalid type: objct"),
    ({"$ref": "http://example.com/schema"}, "does not fetch resources"),
    ({"$ref": "#/$defs/none"}, "none"),
    ({"type": "integer", "minimum": "x"}, "minimum"),
    (5, "must be an object or a boolean"),
]


@pytest.mark.parametrize(("schema", "words"), [*UNSATISFIABLE, *UNSUPPORTED])
def test_schemas_that_are_refused(vocabulary: GrammarVocabulary, schema: object, words: str) -> None:
    with pytest.raises(InvalidGrammar) as refusal:
        CompiledGrammar.compile(json_schema(schema), vocabulary)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "x-guidance" not in str(refusal.value)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("[", "unclosed character class"),
        ("(a", "unclosed group"),
        (r"(a)\1", "backreferences are not supported"),
        ("a(?=b)", "look-around"),
        (r"\bword\b", "lookarounds not supported"),
        ("a" * 5000 + r"\b", "lookarounds not supported"),
        ("((((((a{0,10}){0,10}){0,10}){0,10}){0,10}){0,10})", "too many expressions"),
    ],
)
def test_regular_expressions_that_are_refused(vocabulary: GrammarVocabulary, pattern: str, words: str) -> None:
    with pytest.raises(InvalidGrammar) as refusal:
        CompiledGrammar.compile(Grammar(GrammarKind.REGEX, pattern), vocabulary)
    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("start: thing", 'unknown name: "thing"'),
        ('thing: "a"', "no start rule"),
        ("start: @other", "unknown grammar"),
        ("hello", "Expected"),
        ("root ::= [", "it is not valid GBNF"),
        ("root ::= " + "(" * 3000, "it is nested too deeply"),
        ('start: <|im_end|> "a"', "angle brackets"),
        ('start: "a" <[5-9]>', "angle brackets"),
        ('%llguidance {"no_forcing": false}\nstart: "a"', "%llguidance"),
    ],
)
def test_grammars_that_are_refused(vocabulary: GrammarVocabulary, source: str, words: str) -> None:
    with pytest.raises(InvalidGrammar) as refusal:
        CompiledGrammar.compile(Grammar(GrammarKind.LARK, source), vocabulary)
    assert words in str(refusal.value)


def test_an_object_too_wide_for_the_limits_is_refused_before_it_runs(vocabulary: GrammarVocabulary) -> None:
    schema = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(1000)}}
    with pytest.raises(InvalidGrammar, match="max is 2000"):
        CompiledGrammar.compile(json_schema(schema), vocabulary)


def test_a_true_schema_is_any_value(vocabulary: GrammarVocabulary) -> None:
    compiled = CompiledGrammar.compile(json_schema(True), vocabulary)
    assert matches(compiled, "null")
    assert matches(compiled, '[{"a": 1.5e3}]')
    assert not matches(compiled, "nil")


def test_the_order_of_properties_is_the_schemas() -> None:
    lark = to_lark(json_schema({"properties": {"b": {}, "a": {}}}))
    assert lark.index('"b"') < lark.index('"a"')


def test_the_languages_of_grammars_are_told_apart() -> None:
    assert to_lark(Grammar(GrammarKind.LARK, 'start: "::="')) == 'start: "::="'
    assert "start:" in to_lark(Grammar(GrammarKind.LARK, 'root ::= "a"'))


def test_a_model_without_an_end_token_has_no_grammars() -> None:
    class Endless(MergedBytes):
        eos_token_ids = ()

    with pytest.raises(InvalidGrammar, match="no token that ends an answer"):
        GrammarVocabulary(Endless(), VOCAB_SIZE)


def test_logits_may_be_wider_than_the_vocabulary(vocabulary: GrammarVocabulary) -> None:
    wide = GrammarVocabulary(MergedBytes(), VOCAB_SIZE + 100)
    matcher = CompiledGrammar.compile(Grammar(GrammarKind.REGEX, "(?s:.)*"), wide).matcher()
    allowed = allowed_tokens(matcher, VOCAB_SIZE + 100)
    assert allowed.max() < VOCAB_SIZE
    assert {256, 258}.isdisjoint(allowed.tolist())


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a\\", "ends in a backslash that escapes nothing"),
        ("[a]\\\\\\", "ends in a backslash"),
        ("(?x)a #b\nc", "the flag x"),
        ("a(?ix-s: b)", "the flag x"),
        ("[]a](?x)", "the flag x"),
        ("[a[b]](?sx)", "the flag x"),
    ],
)
def test_a_regular_expression_that_would_mean_something_else_is_refused(
    vocabulary: GrammarVocabulary, pattern: str, words: str
) -> None:
    with pytest.raises(InvalidGrammar, match=words):
        CompiledGrammar.compile(Grammar(GrammarKind.REGEX, pattern), vocabulary)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a\\\\", "a\\"),
        (r"[(?x)]+", "(x"),
        (r"\(?x\)", "x)"),
        ("(?i-x)A", "a"),
        ("(?P<x>a)", "a"),
        ("[^]](?i)B", "ab"),
        ("a#b", "a#b"),
        ("a/b", "a/b"),
    ],
)
def test_a_regular_expression_means_what_it_says(vocabulary: GrammarVocabulary, pattern: str, text: str) -> None:
    assert matches(CompiledGrammar.compile(Grammar(GrammarKind.REGEX, pattern), vocabulary), text)


@pytest.mark.parametrize("text", ["a\x7fb", "\x7f", "\\\x7f", "\x01\x1f\x80\u2028", '"\\u007f'])
def test_a_choice_may_have_any_character(vocabulary: GrammarVocabulary, text: str) -> None:
    compiled = CompiledGrammar.compile(Grammar(GrammarKind.CHOICE, json.dumps([text, "no"])), vocabulary)
    assert matches(compiled, text)
    assert matches(compiled, "no")
    assert not matches(compiled, text + "x")


class PanicException(BaseException):
    """What a panic in Rust is to Python."""


def test_a_panic_is_a_refusal(vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(*_: object, **__: object) -> None:
        raise PanicException("index out of bounds")

    monkeypatch.setattr("llguidance.LLMatcher", panic)
    with pytest.raises(InvalidGrammar, match="llguidance fails on it: index out of bounds"):
        CompiledGrammar.compile(Grammar(GrammarKind.REGEX, "a"), vocabulary)


def freed(start: LLMatcher) -> bool:
    """Whether the thread that frees grammars has taken the memory of one."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(0.001)
        with suppress(RuntimeError):  # the thread uses it at this moment
            if start.is_error():
                return True
    return False


def test_a_large_grammar_is_freed_by_a_thread_after_its_last_matcher(vocabulary: GrammarVocabulary) -> None:
    """Where it is freed instead, llguidance holds the interpreter lock, for most of a second."""
    from llguidance import LLMatcher

    start_freeing()
    kept, large, small = (LLMatcher(vocabulary.tokens, 'start: "ab"', log_level=0) for _ in range(3))
    matcher = CompiledGrammar(kept, vocabulary, limits_digits=False, num_bytes=LARGE_BYTES).matcher()
    matcher.accept(ord("a"))
    copy = matcher.copy()
    CompiledGrammar(small, vocabulary, limits_digits=False, num_bytes=LARGE_BYTES - 1)
    CompiledGrammar(large, vocabulary, limits_digits=False, num_bytes=LARGE_BYTES)
    assert freed(large)
    assert not small.is_error()  # such a one is freed at once
    assert not kept.is_error()  # it has matchers
    del matcher
    copy.accept(ord("b"))
    assert copy.is_stopped
    del copy
    assert freed(kept)


def test_grammars_are_freed_again_after_the_thread_has_failed(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from llguidance import LLMatcher

    class Panic(BaseException):
        """As PyO3's, which is no Exception."""

    def fail(num_threads: int) -> None:
        raise Panic

    monkeypatch.setattr(compiled_grammar, "_freeing", threading.Lock())
    monkeypatch.setattr(compiled_grammar, "_unused", SimpleQueue())
    with monkeypatch.context() as failing:
        failing.setattr("llguidance.LLExecutor", fail)
        start_freeing()
        deadline = time.monotonic() + PATIENCE_S
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.001)
    assert "large grammars are freed where they are left" in caplog.text
    large = LLMatcher(vocabulary.tokens, 'start: "ab"', log_level=0)
    is_freed = False
    while not is_freed and time.monotonic() < deadline:
        start_freeing()  # as the next hard grammar does
        CompiledGrammar(large, vocabulary, limits_digits=False, num_bytes=LARGE_BYTES)
        time.sleep(0.001)
        with suppress(RuntimeError):  # the thread uses it at this moment
            is_freed = large.is_error()
    assert is_freed


def test_what_follows_a_prefix_is_as_large_as_the_grammar(vocabulary: GrammarVocabulary) -> None:
    compiled = CompiledGrammar.compile(Grammar(GrammarKind.REGEX, "ab"), vocabulary)
    compiled.num_bytes = 5
    assert compiled.after([ord("a")]).num_bytes == 5
