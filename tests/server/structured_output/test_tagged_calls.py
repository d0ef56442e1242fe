"""Strict calls in tags follow the tools' schemas: names, order, and the types of values."""

from __future__ import annotations

import json

import pytest

from sampling.host.grammar import GrammarError
from server.output_parsers.families.glm import GLM
from server.output_parsers.families.json_formats import QWEN_CODER
from server.output_parsers.families.tagged_calls import DEEPSEEK_V32, MINIMAX, SEED_OSS
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.parser_events import ToolCallArguments, ToolCallStart, merged
from server.output_parsers.tool_call_lark import LarkMarkers, tool_call_lark
from server.output_parsers.tool_parser import ToolParser
from server.protocol.tools import FunctionDefinition, StrictCalls
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from server.structured_output.token_table import TokenTable
from server.structured_output.tool_call_grammar import ToolCallGrammar
from tests.fakes.grammar_walk import MergedBytes, allowed_tokens

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "n": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/T"}},
        "on": {"type": ["boolean", "null"]},
    },
    "required": ["city", "n"],
    "$defs": {"T": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}},
}
TOOLS = [
    FunctionDefinition(name="weather", parameters=SCHEMA, strict=True),
    FunctionDefinition(name="clock", parameters={"type": "object", "properties": {}}, strict=True),
    FunctionDefinition(name="free"),
]
VALUES = {"city": "a < b\n</q>", "n": "5", "unit": "F", "tags": '[{"a": 1.5}]', "on": "True"}
RIGHT = {"city": "a < b\n</q>", "n": 5, "unit": "F", "tags": [{"a": 1.5}], "on": True}
DSML = "\uff5cDSML\uff5c"


def written(syntax: ToolCallSyntax, name: str, values: dict[str, str]) -> str:
    texts = ("city", "unit")
    match syntax.name:
        case "qwen3_coder":
            parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
            return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"
        case "seed_oss":
            parameters = "".join(f"<parameter={key}>{value}</parameter>\n" for key, value in values.items())
            return f"<seed:tool_call>\n<function={name}>\n{parameters}</function>\n</seed:tool_call>"
        case "glm45":
            return f"<tool_call>{name}\n" + "".join(
                f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values.items()
            ) + "</tool_call>"  # fmt: skip
        case "minimax_m2":
            inner = "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in values.items())
            return f'<minimax:tool_call>\n<invoke name="{name}">\n{inner}</invoke>\n</minimax:tool_call>'
    inner = "".join(
        f'<{DSML}parameter name="{key}" string="{"true" if key in texts else "false"}">{value}</{DSML}parameter>\n'
        for key, value in values.items()
    )
    block = f"{DSML}function_calls"
    return f'<{block}>\n<{DSML}invoke name="{name}">\n{inner}</{DSML}invoke>\n</{block}>'


def grammar(syntax: ToolCallSyntax) -> ToolCallGrammar:
    found = tool_call_lark(syntax, StrictCalls(TOOLS, 16), LarkMarkers({}))
    assert found is not None
    vocabulary = GrammarVocabulary(MergedBytes(), MergedBytes.vocab_size)
    compiled = CompiledGrammar.compile(found.grammar, vocabulary)
    table = TokenTable(MergedBytes.token_bytes, MergedBytes.eos_token_ids, MergedBytes.vocab_size)
    return ToolCallGrammar(table, compiled, found.begins, only_first=False, is_single=False)


SYNTAXES = {syntax.name: syntax for syntax in (QWEN_CODER, GLM, MINIMAX, SEED_OSS, DEEPSEEK_V32)}
GRAMMARS = {name: grammar(syntax) for name, syntax in SYNTAXES.items()}


def is_allowed(name: str, text: str) -> bool:
    matcher = GRAMMARS[name].matcher()
    for byte in text.encode():
        if byte not in allowed_tokens(matcher, MergedBytes.vocab_size):
            return False
        try:
            matcher.accept(byte)
        except GrammarError:
            return False
    return not matcher.is_within_call


@pytest.mark.parametrize("name", SYNTAXES)
def test_a_right_call_is_allowed_and_read(name: str) -> None:
    text = written(SYNTAXES[name], "weather", VALUES)
    assert is_allowed(name, f"Well.\n{text}\nThat is it.")
    parser = ToolParser(SYNTAXES[name], {"weather": SCHEMA})
    start, arguments = merged([*parser.feed(text), *parser.flush()])
    assert start == ToolCallStart("weather")
    assert isinstance(arguments, ToolCallArguments)
    assert json.loads(arguments.text) == RIGHT


@pytest.mark.parametrize("name", SYNTAXES)
def test_arguments_that_are_not_required_may_be_missing(name: str) -> None:
    assert is_allowed(name, written(SYNTAXES[name], "weather", {"city": "Oslo", "n": "5"}))
    assert is_allowed(name, written(SYNTAXES[name], "clock", {}))
    assert is_allowed(name, written(SYNTAXES[name], "weather", {"city": "Oslo", "n": "5", "on": "None"}))


@pytest.mark.parametrize("name", SYNTAXES)
@pytest.mark.parametrize(
    ("tool", "values"),
    [
        ("sun", {}),
        ("clock", {"city": "Oslo"}),
        ("weather", {"city": "Oslo"}),
        ("weather", {"n": "5", "city": "Oslo"}),
        ("weather", {"city": "Oslo", "n": "five"}),
        ("weather", {"city": "Oslo", "n": "5", "unit": "K"}),
        ("weather", {"city": "Oslo", "n": "5", "tags": '[{"b": 1}]'}),
        ("weather", {"city": "Oslo", "n": "5", "other": "1"}),
    ],
)
def test_a_wrong_call_is_impossible(name: str, tool: str, values: dict[str, str]) -> None:
    assert not is_allowed(name, written(SYNTAXES[name], tool, values))


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "minimax_m2", "seed_oss"])
def test_a_tool_that_is_not_strict_takes_any_arguments(name: str) -> None:
    assert is_allowed(name, written(SYNTAXES[name], "free", {"any": "thing", "n": "x"}))


def test_qwen_coders_call_without_its_outer_tag() -> None:
    inner = written(QWEN_CODER, "weather", VALUES).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    assert is_allowed("qwen3_coder", f"{inner} Done.")
    assert not is_allowed("qwen3_coder", f"<tool_call>\n{inner} Done.")


def test_tags_that_are_control_tokens_are_not_enforced() -> None:
    assert tool_call_lark(GLM, StrictCalls(TOOLS, 16), LarkMarkers({"<arg_key>": 7})) is None
