"""Calls that a model chooses to make follow the schemas from their marker on, and other text is left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling.host.grammar import GrammarError, TokenMatcher
from server.output_parsers.families.deepseek import DEEPSEEK
from server.output_parsers.families.gemma import GEMMA
from server.output_parsers.families.json_formats import HERMES, LLAMA, MISTRAL
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.parser_events import ToolCallStart
from server.output_parsers.tool_call_lark import LarkMarkers, tool_call_lark
from server.output_parsers.tool_parser import ToolParser
from server.protocol.tools import FunctionDefinition, StrictCalls
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from server.structured_output.tool_call_grammar import ToolCallGrammar
from tests.fakes.grammar_walk import allowed_tokens
from tests.fakes.pieces import ARGS, CALLS_BEGIN, CONTROL, END, SHOWN, TABLE, TEXTS, Pieces, bytes_of, splits

ALL = list(range(Pieces.vocab_size))
VOCABULARY = GrammarVocabulary(Pieces(), Pieces.vocab_size)
CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"City": {"enum": ["Oslo", "Rome"]}},
}
TOOLS = [
    FunctionDefinition(name="weather", parameters=CITY, strict=True),
    FunctionDefinition(name="clock", parameters={"type": "object", "required": ["zone"]}),
]
MARKERS = LarkMarkers({"[ARGS]": ARGS, CONTROL[2]: CALLS_BEGIN})
GOOD = '{"name": "weather", "arguments": {"city": "Oslo"}}'
_SEP, _BEGIN, _END, _ALL_END = DEEPSEEK.markers[2], DEEPSEEK.markers[1], DEEPSEEK.markers[3], DEEPSEEK.markers[4]
FENCED = f'function{_SEP}weather\n```json\n{{"city": "Rome"}}\n```'
CALLS = {
    HERMES: f"<tool_call>\n{GOOD}\n</tool_call>",
    LLAMA: GOOD.replace("arguments", "parameters"),
    MISTRAL: f"[TOOL_CALLS] [{GOOD}]",
    DEEPSEEK: f"{DEEPSEEK.begins[0]}{_BEGIN}{FENCED}{_END}\n{_BEGIN}clock{_SEP}{{}}{_END}{_ALL_END}",
}


def made(syntax: ToolCallSyntax, most: int = 16) -> ToolCallGrammar:
    found = tool_call_lark(syntax, StrictCalls(TOOLS, most), MARKERS)
    assert found is not None
    compiled = CompiledGrammar.compile(found.grammar, VOCABULARY)
    return ToolCallGrammar(TABLE, compiled, found.begins, only_first=syntax.only_first, is_single=most == 1)


RULES = {syntax.name: made(syntax) for syntax in CALLS}


def allowed(matcher: TokenMatcher) -> list[int]:
    return allowed_tokens(matcher, Pieces.vocab_size).tolist()


def follows(matcher: TokenMatcher, token_ids: list[int]) -> bool:
    """Whether an answer can be these tokens; what the mask forbids and what is accepted must agree."""
    for token_id in token_ids:
        is_allowed = token_id in allowed(matcher)
        try:
            matcher.accept(token_id)
        except GrammarError:
            assert not is_allowed
            return False
        assert is_allowed
    return True


@pytest.mark.parametrize("syntax", CALLS, ids=lambda syntax: syntax.name)
def test_a_right_call_in_each_syntax(syntax: ToolCallSyntax) -> None:
    """What the grammar takes, the reader of answers takes for calls, too."""
    matcher = RULES[syntax.name].matcher()
    text = CALLS[syntax]
    assert follows(matcher, bytes_of(text))
    assert allowed(matcher) == ALL
    reader = ToolParser(syntax, {tool.name: tool.parameters for tool in TOOLS})
    calls = [event.name for event in (*reader.feed(text), *reader.flush()) if isinstance(event, ToolCallStart)]
    assert calls == (["weather", "clock"] if syntax is DEEPSEEK else ["weather"])


@pytest.mark.parametrize("syntax", CALLS, ids=lambda syntax: syntax.name)
@pytest.mark.parametrize(
    ("right", "wrong"), [("Oslo", "Bonn"), ("Rome", "Bonn"), ("weather", "whether"), ('city"', 'town"')]
)
def test_a_wrong_call_is_impossible(syntax: ToolCallSyntax, right: str, wrong: str) -> None:
    text = CALLS[syntax]
    if right in text:
        assert not follows(RULES[syntax.name].matcher(), bytes_of(text.replace(right, wrong)))


@settings(max_examples=25)
@given(seed=st.integers(0, 2**31 - 1), before=st.sampled_from(["", "Yes <", "so <tool_call", "<tool_cal\n"]))
def test_markers_cut_anywhere(seed: int, before: str) -> None:
    """Tokens that end the marker and go on with what begins a call are as good as others."""
    matcher = RULES["hermes"].matcher()
    assert follows(matcher, splits(before + CALLS[HERMES], seed))
    assert follows(matcher, splits(".\n" + CALLS[HERMES] + " Yes", seed))
    assert allowed(matcher) == ALL


def test_a_token_that_would_begin_a_wrong_call_is_refused() -> None:
    matcher = RULES["hermes"].matcher()
    assert follows(matcher, bytes_of("<tool_c"))
    refused = sorted(set(ALL) - set(allowed(matcher)))
    assert refused == [TEXTS.index(b"all>x")]
    assert follows(matcher, [TEXTS.index(b"all>\n{")])
    assert follows(matcher, bytes_of(GOOD[1:] + "</tool_call>"))
    assert not follows(RULES["hermes"].matcher(), [*bytes_of("<tool_c"), TEXTS.index(b"all>x")])


@settings(max_examples=25)
@given(seed=st.integers(0, 2**31 - 1), text=st.text(alphabet="<tol_ca>{ [T]é", max_size=30))
def test_text_without_a_call_is_left_alone(seed: int, text: str) -> None:
    for name, marker in (("hermes", "<tool_call>"), ("mistral", "[TOOL_CALLS]")):
        if marker not in text:
            assert follows(RULES[name].matcher(), splits(text, seed))


def test_llama_calls_are_the_whole_of_an_answer() -> None:
    call = CALLS[LLAMA]
    rules = RULES["llama3_json"]
    assert follows(rules.matcher(), bytes_of("Yes {anything}"))
    assert not follows(rules.matcher(), bytes_of('\n{"x'))
    assert not follows(rules.matcher(), [TEXTS.index(b'{"'), ord("x")])
    assert follows(rules.matcher(), bytes_of(f"\n{call}; {call} And {{so}} on"))
    assert not follows(rules.matcher(), bytes_of(f"{call}; {{}}"))
    assert follows(rules.matcher(), bytes_of(f"<|python_tag|>{call}"))


def test_mistral_by_names_and_control_tokens() -> None:
    named = [*bytes_of("Yes[TOOL_CALLS]weather"), ARGS, *bytes_of('{"city": "Oslo"}')]
    assert follows(RULES["mistral"].matcher(), [*named, *named, END])
    assert not follows(RULES["mistral"].matcher(), bytes_of("[TOOL_CALLS]weather[ARGS]{}"))


def test_a_marker_that_is_a_control_token() -> None:
    rest = CALLS[DEEPSEEK].removeprefix(DEEPSEEK.begins[0])
    assert SHOWN[CALLS_BEGIN].decode() == DEEPSEEK.begins[0]
    assert follows(RULES["deepseek_v3"].matcher(), [CALLS_BEGIN, *bytes_of(rest)])
    assert not follows(RULES["deepseek_v3"].matcher(), [CALLS_BEGIN, *bytes_of("Yes")])


@pytest.mark.parametrize("syntax", CALLS, ids=lambda syntax: syntax.name)
def test_one_call_where_they_are_not_parallel(syntax: ToolCallSyntax) -> None:
    matcher = made(syntax, most=1).matcher()
    assert matcher.ends_output
    text = CALLS[syntax]
    if syntax is DEEPSEEK:
        assert not follows(made(syntax, most=1).matcher(), bytes_of(text))
        text = text.split("\n" + _BEGIN)[0] + _ALL_END
    assert follows(matcher, bytes_of(text))
    assert allowed(matcher) == [END]


@settings(max_examples=25)
@given(data=st.data())
def test_an_answer_goes_on_where_it_was_cut(data: Any) -> None:
    whole = splits(f"Yes {CALLS[HERMES]} <tool_call>{GOOD}</tool_call> .", data.draw(st.integers(0, 2**31 - 1)))
    cut = data.draw(st.integers(0, len(whole)))
    behind, alone = RULES["hermes"].after(whole[:cut]), RULES["hermes"].matcher()
    for token_id in whole[:cut]:
        alone.accept(token_id)
    one = behind.matcher()
    for token_id in whole[cut:]:
        assert allowed(one) == allowed(alone)
        one.accept(token_id)
        alone.accept(token_id)
    assert follows(behind.matcher(), whole[cut:])


def test_other_syntaxes_and_tools_that_are_not_strict() -> None:
    assert tool_call_lark(GEMMA, StrictCalls(TOOLS, 16), MARKERS) is None
    assert StrictCalls.of(TOOLS[1:], is_parallel=True) is None
    loose = json.dumps({"name": "clock", "arguments": {"any": [1]}})
    assert follows(RULES["hermes"].matcher(), bytes_of(f"<tool_call>{loose}</tool_call>"))
