"""The arguments of calls in plain JSON follow the tools' schemas from the tool's name on, in any wrapper."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling.host.grammar import TokenMatcher
from server.output_parsers.tool_call_lark import arguments_lark
from server.protocol.tools import FunctionDefinition
from server.structured_output.argument_grammar import ArgumentGrammar, ArgumentKeys
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from server.structured_output.token_table import TokenTable
from tests.fakes.grammar_walk import MergedBytes, allowed_tokens

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [FunctionDefinition(name="weather", parameters=CITY), FunctionDefinition(name="clock")]
_MORE = ('arguments"', 's":', 's": {', 's":{"', '":"', '":{', '{"name', "ments", "```json\n", "}\n", "}}", '},{"')


class Vocabulary(MergedBytes):
    token_bytes = (*MergedBytes.token_bytes, *(text.encode() for text in _MORE))
    vocab_size = len(token_bytes)


VOCABULARY = GrammarVocabulary(Vocabulary(), Vocabulary.vocab_size)
KEYS = ArgumentKeys(TokenTable(Vocabulary.token_bytes, Vocabulary.eos_token_ids, Vocabulary.vocab_size))
COMPILED = CompiledGrammar.compile(arguments_lark(TOOLS), VOCABULARY)
RULES = ArgumentGrammar(KEYS, COMPILED, [tool.name for tool in TOOLS], None, is_single=False)
ONLY_ONE = CompiledGrammar.compile(arguments_lark(TOOLS, is_single=True), VOCABULARY)
SINGLE = ArgumentGrammar(KEYS, ONLY_ONE, [tool.name for tool in TOOLS], None, is_single=True)
GOOD = '{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}'


def splits(text: str, seed: int) -> list[int]:
    data, token_ids = text.encode(), []
    while data:
        fitting = [at for at, piece in enumerate(Vocabulary.token_bytes) if piece and data.startswith(piece)]
        token_ids.append(fitting[seed % len(fitting)])
        seed = (seed * 1103515245 + 12345) % 2**31
        data = data[len(Vocabulary.token_bytes[token_ids[-1]]) :]
    return token_ids


def follows(matcher: TokenMatcher, token_ids: list[int]) -> bool:
    for token_id in token_ids:
        if token_id not in allowed_tokens(matcher, Vocabulary.vocab_size):
            return False
        matcher.accept(token_id)
    return True


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```json\n{GOOD}\n```\n{GOOD}",
        f"I look.\n<tools>{GOOD}</tools> And so on",
        GOOD.replace("arguments", "parameters"),
        json.dumps(json.loads(GOOD), indent=2),
        '{"id": "1", "type": "function", "name": "clock", "arguments": {}}',
        '{"name": "other", "arguments": {"city": "Bonn"}}',
        '{"name": "weather", "description": "of a city"} {"city": "Bonn"}',
        '{"a": [{}, {"name": 1}]} {{{',
    ],
)
def test_right_calls_and_other_texts_are_left_alone(text: str) -> None:
    assert follows(RULES.matcher(), list(text.encode()))


@pytest.mark.parametrize(
    ("right", "wrong"), [("Oslo", "Bonn"), ('"days"', '"hours"'), ("2}", '"2"}'), ('{"city"', '[{"city"')]
)
@pytest.mark.parametrize("before", ["", "```json\n", "I look: <function>[", "<tool_call>\n"])
def test_wrong_arguments_are_impossible(before: str, right: str, wrong: str) -> None:
    assert right in GOOD
    assert not follows(RULES.matcher(), list((before + GOOD.replace(right, wrong)).encode()))


@settings(max_examples=50)
@given(seed=st.integers(0, 2**31 - 1), wrong=st.sampled_from(["Bonn", "Osl", 'Oslo", "x']))
def test_tokens_across_the_key_make_no_difference(seed: int, wrong: str) -> None:
    assert not follows(RULES.matcher(), splits(f"So. {GOOD.replace('Oslo', wrong)}", seed))


def test_a_token_that_goes_on_behind_the_key_cannot_begin_what_is_no_object() -> None:
    matcher = RULES.matcher()
    assert follows(matcher, list(b'{"name": "weather", "argument'))
    texts = [Vocabulary.token_bytes[at] for at in allowed_tokens(matcher, Vocabulary.vocab_size)]
    assert b's":' in texts
    assert b's": {' not in texts
    assert b's":{"' not in texts


def test_the_token_that_ends_the_arguments_may_go_on_behind_them() -> None:
    ending = {b"}", b"}\n", b"}}", b"}]"}
    for rules, ends in ((RULES, ending | {b"},", b'},{"'}), (SINGLE, ending)):
        matcher = rules.matcher()
        assert follows(matcher, list(GOOD[:-2].encode()))
        texts = {Vocabulary.token_bytes[at] for at in allowed_tokens(matcher, Vocabulary.vocab_size)}
        assert {text for text in texts if text.startswith(b"}")} == ends
        for text in ends:
            after = matcher.copy()
            after.accept(Vocabulary.token_bytes.index(text))
            if rules is RULES:
                assert len(allowed_tokens(after, Vocabulary.vocab_size)) > 256
            else:
                assert set(allowed_tokens(after, Vocabulary.vocab_size)) == set(Vocabulary.eos_token_ids)


def test_a_call_that_begins_in_the_token_that_ends_another_follows_its_schema() -> None:
    matcher = RULES.matcher()
    assert follows(matcher, list(GOOD[:-2].encode()))
    assert follows(matcher, [Vocabulary.token_bytes.index(b'},{"')])
    assert follows(matcher.copy(), list(b'name": "weather", "arguments": {"city": "Rome"}}'))
    assert not follows(matcher, list(b'name": "weather", "arguments": {"city": "Bonn"}}'))


def test_one_call_where_they_are_not_parallel() -> None:
    for before in ("", "```json\n", "I look.\n<tool_call>\n"):
        matcher = SINGLE.matcher()
        assert follows(matcher, list((before + GOOD[:-1]).encode()))
        assert set(allowed_tokens(matcher, Vocabulary.vocab_size)) == set(Vocabulary.eos_token_ids)
    assert follows(SINGLE.matcher(), list(f"Write {GOOD} to call it.".encode()))


@settings(max_examples=20)
@given(data=st.data())
def test_an_answer_goes_on_where_it_was_cut(data: st.DataObject) -> None:
    whole = list(f"Yes {GOOD} and {GOOD}.".encode())
    cut = data.draw(st.integers(0, len(whole)))
    assert follows(RULES.after(whole[:cut]).matcher(), whole[cut:])
