"""Free text whose tags have JSON of a schema behind them."""

from __future__ import annotations

from typing import Any

import pytest

from server.protocol.structured_outputs import ResponseFormat
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from tests.fakes.grammar_walk import MergedBytes, allowed_tokens
from tests.server.conftest import RunningServer

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
STRUCTURES = [
    {"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"},
    {"begin": "<f=b>", "end": "</f>"},
    {"begin": "!", "schema": {"type": "boolean"}, "end": ""},
]
TAGS: dict[str, Any] = {"type": "structural_tag", "structures": STRUCTURES, "triggers": ["<f=", "!", "unused"]}


@pytest.fixture(scope="module")
def compiled() -> CompiledGrammar:
    grammar = ResponseFormat.model_validate(TAGS).to_grammar()
    assert grammar is not None
    return CompiledGrammar.compile(grammar, GrammarVocabulary(MergedBytes(), MergedBytes.vocab_size))


def end_of(compiled: CompiledGrammar, text: str) -> str:
    """What of the text the grammar takes, byte by byte; with a mark where the text may end there."""
    matcher = compiled.matcher()
    taken = b""
    for byte in text.encode():
        if byte not in allowed_tokens(matcher, MergedBytes.vocab_size):
            return taken.decode()
        matcher.accept(byte)
        taken += bytes([byte])
    may_end = set(MergedBytes.eos_token_ids) & set(allowed_tokens(matcher, MergedBytes.vocab_size).tolist())
    return taken.decode() + ("$" if may_end else "")


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("", "$"),
        ("Any <text> at all, {", "Any <text> at all, {$"),
        ('I call.\n<f=a>{"n": 5}</f> and <f=b>[1]</f>!true.', 'I call.\n<f=a>{"n": 5}</f> and <f=b>[1]</f>!true.$'),
        ('<f=a>{"n": "x"', '<f=a>{"n": '),
        ('<f=a>{"n": 5}', '<f=a>{"n": 5}'),
        ("<f=c>", "<f="),
        ("no!no", "no!"),
    ],
)
def test_behind_a_trigger_only_the_tags_are_allowed(compiled: CompiledGrammar, text: str, taken: str) -> None:
    assert end_of(compiled, text) == taken


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"triggers": ["<g="]}, "begins with none of the triggers"),
        ({"triggers": ["<f=", "<", "!"]}, "begins with 2 of the triggers"),
        ({"triggers": None}, "needs structures and triggers"),
        ({"type": "text"}, "structures or triggers"),
        ({"structures": []}, "at least 1"),
        ({"structures": [{"begin": "!", "end": "x" * 600}]}, "at most 512"),
    ],
)
async def test_what_is_refused(server: RunningServer, changed: dict[str, Any], words: str) -> None:
    status, answer = await server.post("/v1/completions", {"prompt": "a", "response_format": {**TAGS, **changed}})
    assert (status, answer["error"]["param"].split(".")[0]) == (400, "response_format")
    assert words in answer["error"]["message"]
