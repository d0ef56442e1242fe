"""Tool calls are read the same wherever the text is cut, and what is no call stays text."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.output_parsers.families.deepseek import DEEPSEEK
from server.output_parsers.families.functionary import FUNCTIONARY_V32
from server.output_parsers.families.gemma import GEMMA
from server.output_parsers.families.gemma4 import GEMMA4
from server.output_parsers.families.glm import GLM
from server.output_parsers.families.harmony import HARMONY
from server.output_parsers.families.json_formats import (
    APERTUS,
    ARRAY,
    COHERE,
    FUNCTIONARY,
    GRANITE,
    HERMES,
    HUNYUAN,
    LLAMA,
    MISTRAL,
    NEMOTRON,
    PHI,
    QWEN_CODER,
)
from server.output_parsers.families.kimi import KIMI
from server.output_parsers.families.lfm2 import LFM2
from server.output_parsers.families.minimax_m3 import MINIMAX_M3
from server.output_parsers.families.pythonic_calls import PYTHONIC
from server.output_parsers.families.step3 import STEP3
from server.output_parsers.families.tagged_calls import DEEPSEEK_V32, MINIMAX, SEED_OSS
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.reading.parser_events import (
    ContentDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
    ToolEvent,
    merged,
)
from server.output_parsers.tool_call_syntaxes import TOOL_CALL_SYNTAXES, syntax_of_template
from server.output_parsers.tool_parser import ToolParser

ONE, TWO = '{"city": "Oslo \\" } ] </tool_call>", "days": [1, {"a": null}]}', "{}"


SCHEMAS = {
    "w": {"properties": {"city": {"type": "string"}, "days": {"type": "array"}, "n": {"type": ["integer", "null"]}}},
    "v": {},
}


def read(syntax: ToolCallSyntax, *pieces: str) -> list[ToolEvent]:
    reader = ToolParser(syntax, SCHEMAS)
    events = [event for piece in pieces for event in reader.feed(piece)]
    return merged([*events, *reader.flush()])


def call(name: str, arguments: str) -> list[ToolEvent]:
    return [ToolCallStart(name), ToolCallArguments(arguments)]


PYTHON = """[w(city='O"s\\\\lo\\n\\u00e9', days=[1, -2.5, True, None, {'a': ()}], n=0x10, t=\"\"\"a"b\"\"\"), v()]"""
AS_JSON = '{"city": "O\\"s\\\\lo\\né", "days": [1, -2.5, true, null, {"a": []}], "n": 16, "t": "a\\"b"}'
BEGIN, CALL, SEP = (
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581call\u2581begin\uff5c>",
    "<\uff5ctool\u2581sep\uff5c>",
)
END, ENDS = "<\uff5ctool\u2581call\u2581end\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>"
DSML = "\uff5cDSML\uff5c"
XML = (
    "<function=w>\n<parameter=city>\n\nif a < b:\n  </param>5\n</parameter>\n<parameter=days>\n[1, 2]\n</parameter>\n"
    "<parameter=n>None</parameter>\n<parameter=other>7</parameter>\n</function>"
)
OF_XML = '{"city": "\\nif a < b:\\n  </param>5", "days": [1, 2], "n": null, "other": "7"}'

M3 = "]<]minimax[>["
OF_M3 = f"{M3}<city>a < b{M3}</city>\n{M3}<days>{M3}<item>x{M3}</item>{M3}<item>{M3}<k>y{M3}</k>{M3}</item>{M3}</days>"
STEP_CALL, STEP_END = "<\uff5ctool_call_begin\uff5c>function<\uff5ctool_sep\uff5c>", "<\uff5ctool_call_end\uff5c>"
OF_STEP = '<steptml:parameter name="city">Oslo</steptml:parameter>\n<steptml:parameter name="n">5</steptml:parameter>'

STEPS_END = "<\uff5ctool_calls_end\uff5c>"

CASES: list[tuple[ToolCallSyntax, str, list[ToolEvent]]] = [
    (MINIMAX_M3, f'Hm.{M3}<tool_call>\n{M3}<invoke name="w">\n{OF_M3}\n{M3}<n>5{M3}</n>{M3}</invoke>\n{M3}</tool_call>',
     [ContentDelta("Hm."), *call("w", '{"city": "a < b", "days": ["x", {"k": "y"}], "n": 5}')]),
    (MINIMAX_M3, f'{M3}<invoke name="v">{M3}</invoke>{M3}<invoke name="w"><city>Oslo</city></invoke></tool_call>',
     [*call("v", "{}"), *call("w", '{"city": "Oslo"}')]),
    (STEP3, f'Hm.<\uff5ctool_calls_begin\uff5c>\n{STEP_CALL}<steptml:invoke name="w">\n{OF_STEP}</steptml:invoke>'
     f'{STEP_END}\n{STEP_CALL}<steptml:invoke name="v"></steptml:invoke>{STEP_END}\n{STEPS_END}',
     [ContentDelta("Hm."), *call("w", '{"city": "Oslo", "n": 5}'), *call("v", "{}")]),
    (HERMES, f'<tool_call>\n{{"name": "w", "arguments": {ONE}}}\n</tool_call>', call("w", ONE)),
    (
        HERMES,
        f'Let me see.\n<tool_call>{{"name":"w","arguments":{ONE}}}</tool_call>\n'
        f'<tool_call>\n{{"arguments": {TWO}, "id": 3, "name": "v"}}\n</tool_call>\n',
        [ContentDelta("Let me see.\n"), *call("w", ONE), *call("v", TWO)],
    ),
    (HERMES, '<tool_call>{"name": "w"}</tool_call> done', [*call("w", "{}"), ContentDelta("done")]),
    (HERMES, "<tool_call>{'name': 1}", [ContentDelta("<tool_call>{'name': 1}")]),
    (HERMES, "a <tool_calls> < <tool", [ContentDelta("a <tool_calls> < <tool")]),
    (HERMES, '<tool_call>{"name": "w", "arguments": {"a": 1', call("w", '{"a": 1')),
    (HERMES, '<tool_call>{"name": "\\u0077", "arguments": "{\\"a\\": 1}"}</tool_call>', call("w", '{"a": 1}')),
    (HERMES, '<tool_call>{"name": "", "arguments": {}}</tool_call>',
     [ContentDelta('<tool_call>{"name": "", "arguments": {}}</tool_call>')]),
    (MISTRAL, f'[TOOL_CALLS] [{{"name": "w", "arguments": {ONE}}}, {{"name": "v", "arguments": {TWO}}}]',
     [*call("w", ONE), *call("v", TWO)]),
    (MISTRAL, f"Yes. [TOOL_CALLS]w[ARGS]{ONE}[TOOL_CALLS]v[ARGS] {TWO}",
     [ContentDelta("Yes. "), *call("w", ONE), *call("v", TWO)]),
    (LLAMA, f'{{"name": "w", "parameters": {ONE}}}', call("w", ONE)),
    (LLAMA, f' {{"name": "w", "parameters": {ONE}}}; {{"name": "v", "parameters": {TWO}}}',
     [*call("w", ONE), *call("v", TWO)]),
    (LLAMA, '{"answer": 42}', [ContentDelta('{"answer": 42}')]),
    (LLAMA, 'I use {"name": "w", "parameters": {}}', [ContentDelta('I use {"name": "w", "parameters": {}}')]),
    (LLAMA, f'<|python_tag|>{{"name": "w", "parameters": {ONE}}}', call("w", ONE)),
    (LLAMA, '{"name": "Bob", "age": 3}', [ContentDelta('{"name": "Bob", "age": 3}')]),
    (MISTRAL, f"[TOOL_CALLS]w[CALL_ID]abc[ARGS]{ONE}", call("w", ONE)),
    (PYTHONIC, PYTHON, [*call("w", AS_JSON), *call("v", "{}")]),
    (PYTHONIC, f"<|python_start|>{PYTHON}", [*call("w", AS_JSON), *call("v", "{}")]),
    (PYTHONIC, "[see](w) [w(1)]", [ContentDelta("[see](w) [w(1)]")]),
    (PYTHONIC, "[print(city='a')]", [ContentDelta("[print(city='a')]")]),
    (PYTHONIC, "[w(city='a' + 'b')]", [*call("w", '{"city": "a"'), ContentDelta("+ 'b')]")]),
    (GEMMA, f"Sure.\n```tool_code\nprint({PYTHON[1:-6]})\nv()\n```\nDone",
     [ContentDelta("Sure.\n"), *call("w", AS_JSON), *call("v", "{}"), ContentDelta("Done")]),
    (GEMMA, f"```tool_code\n{PYTHON}\n```", [*call("w", AS_JSON), *call("v", "{}")]),
    (GEMMA, f'```tool_code\n{{"name": "w", "parameters": {ONE}}}\n```', call("w", ONE)),
    (GEMMA, f'```json\n[{{"name": "w", "parameters": {ONE}}}]\n```', call("w", ONE)),
    (GEMMA, '```json\n{"name": "Bob"}\n```', [ContentDelta('```json\n{"name": "Bob"}\n```')]),
    (DEEPSEEK, f"Hm.{BEGIN}{CALL}function{SEP}w\n```json\n{ONE}\n```{END}\n{CALL}v{SEP}{TWO}{END}{ENDS}",
     [ContentDelta("Hm."), *call("w", ONE), *call("v", TWO)]),
    (QWEN_CODER, f"Well.\n<tool_call>\n{XML}\n</tool_call>", [ContentDelta("Well.\n"), *call("w", OF_XML)]),
    (QWEN_CODER, XML, call("w", OF_XML)),
    (HERMES, f"<tool_call>\n{XML}\n</tool_call>", call("w", OF_XML)),
    (HERMES, f'<tool_call>\n```json\n{{"name": "w", "arguments": {ONE}}}\n```\n</tool_call>', call("w", ONE)),
    (QWEN_CODER, XML.replace("</parameter>", "</parameter>\n</parameter>"), call("w", OF_XML)),
    (GRANITE, f'<|tool_call|>[{{"name": "w", "arguments": {ONE}}}]', call("w", ONE)),
    (GRANITE, f'<tool_call>{{"name": "w", "arguments": {ONE}}}</tool_call>', call("w", ONE)),
    (PHI, f'functools[{{"name": "w", "arguments": {ONE}}}]', call("w", ONE)),
    (PHI, "import functools", [ContentDelta("import functools")]),
    (ARRAY, f'[{{"name": "w", "arguments": {ONE}}} , {{"name":"v","arguments":{TWO}}}]',
     [*call("w", ONE), *call("v", TWO)]),
    (NEMOTRON, f'Ok.\n<TOOLCALL>[{{"name": "w", "arguments": {ONE}}}, {{"name": "v", "arguments": ""}}]</TOOLCALL>\n',
     [ContentDelta("Ok.\n"), *call("w", ONE), *call("v", "{}")]),
    (COHERE, f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "w", "parameters": {ONE}}},\n'
     f'    {{"tool_call_id": "1", "tool_name": "v", "parameters": {TWO}}}\n]<|END_ACTION|>',
     [*call("w", ONE), *call("v", TWO)]),
    (APERTUS, f'<|tools_prefix|>[{{"w": {ONE}}}, {{"v": {TWO}}}]<|tools_suffix|>', [*call("w", ONE), *call("v", TWO)]),
    (LFM2, f"<|tool_call_start|>{PYTHON}<|tool_call_end|>Done.",
     [*call("w", AS_JSON), *call("v", "{}"), ContentDelta("Done.")]),
    (LFM2, f'<|tool_call_start|>[{{"name": "w", "arguments": {ONE}}}]<|tool_call_end|>', call("w", ONE)),
    (KIMI, "Yes.<|tool_calls_section_begin|><|tool_call_begin|>functions.w:0<|tool_call_argument_begin|>"
     f"{ONE}<|tool_call_end|>\n<|tool_call_begin|>v<|tool_call_argument_begin|>{TWO}<|tool_call_end|>"
     "<|tool_calls_section_end|>",
     [ContentDelta("Yes."), ToolCallStart("w", "functions.w:0"), ToolCallArguments(ONE), *call("v", TWO)]),
    (KIMI, f"Yes.<|tool_call_begin|>functions_w_0<|tool_call_argument_begin|>{ONE}<|tool_call_end|>"
     f"<|tool_call_begin|>functions.v:1<|tool_call_argument_begin|>{TWO}<|tool_call_end|>",
     [ContentDelta("Yes."), *call("w", ONE), ToolCallStart("v", "functions.v:1"), ToolCallArguments(TWO)]),
    (GLM, "Hm.\n<tool_call>w\n<arg_key>city</arg_key>\n<arg_value>a\n</arg_valu>\n</arg_value>\n"
     "<arg_key>days</arg_key>\n<arg_value>[1, 2]</arg_value>\n<arg_key>n</arg_key><arg_value>5</arg_value></tool_call>"
     "\n<tool_call>v</tool_call>",
     [ContentDelta("Hm.\n"), *call("w", '{"city": "a\\n</arg_valu>\\n", "days": [1, 2], "n": 5}'), *call("v", "{}")]),
    (MINIMAX, '<minimax:tool_call>\n<invoke name="w">\n<parameter name="city">if a < b:\n</parameter>\n'
     '<parameter name="n">null</parameter>\n</invoke>\n<invoke name="v"></invoke>\n</minimax:tool_call>\n',
     [*call("w", '{"city": "if a < b:\\n", "n": null}'), *call("v", "{}")]),
    (SEED_OSS, 'Well. <seed:tool_call>\n<function=w>\n<parameter=city>\na < b\n</parameter>\n'
     '<parameter=n>5</parameter>\n</function>\n<function=v>\n</function>\n</seed:tool_call>\n',
     [ContentDelta("Well. "), *call("w", '{"city": "a < b", "n": 5}'), *call("v", "{}")]),
    (HUNYUAN, f'<tool_calls>[{{"name": "w", "arguments": {ONE}}}, {{"name": "v", "arguments": {TWO}}}]\n</tool_calls>',
     [*call("w", ONE), *call("v", TWO)]),
    (DEEPSEEK_V32, f'So.\n\n<{DSML}function_calls>\n<{DSML}invoke name="w">\n'
     f'<{DSML}parameter name="city" string="true">12</{DSML}parameter>\n'
     f'<{DSML}parameter name="other" string="false">[1, {{"a": true}}]</{DSML}parameter>\n'
     f'</{DSML}invoke>\n</{DSML}function_calls>',
     [ContentDelta("So.\n\n"), *call("w", '{"city": "12", "other": [1, {"a": true}]}')]),
    (DEEPSEEK_V32, f'<{DSML}tool_calls>\n<{DSML}invoke name="v">\n</{DSML}invoke>\n</{DSML}tool_calls>',
     call("v", "{}")),
    (GEMMA4,
     'Well.<|tool_call>call:w{city:<|"|>O"s\\l\no<|"|>,days:[1,-2.5,true,None,{a:[],<|"|>b c<|"|>:<|"|><|<|"|>}]'
     ",n:5,t:free text}<tool_call|><|tool_call>call:v{}<tool_call|>",
     [ContentDelta("Well."),
      *call("w", '{"city": "O\\"s\\\\l\\no", "days": [1, -2.5, true, null, {"a": [], "b c": "<|"}], "n": 5, '
            '"t": "free text"}'),
      *call("v", "{}")]),
    (HARMONY, f"<|channel|>commentary to=functions.w <|constrain|>json<|message|>{ONE}", call("w", ONE)),
    (HARMONY, f" to=functions.w<|channel|>commentary json<|message|>{ONE}", call("w", ONE)),
    (HARMONY, "<|channel|>commentary<|message|>Let me see. <|end|><|start|>assistant<|channel|>analysis<|message|>"
     "a < b<|end|><|start|>assistant to=functions.v<|channel|>commentary<|message|><|call|>",
     [ContentDelta("Let me see. <|end|>"), ReasoningDelta("a < b"), *call("v", "{}")]),
    (HARMONY, "<|channel|>final<|message|>Send it to=functions.w, please.<|return|>",
     [ContentDelta("Send it to=functions.w, please.<|return|>")]),
    (FUNCTIONARY_V32, f"w\n{ONE}>>>v\n{TWO}", [*call("w", ONE), *call("v", TWO)]),
    (FUNCTIONARY_V32, f"all\nI type\n>>> print(1)\n>>>w\n{ONE}",
     [ContentDelta("I type\n>>> print(1)\n"), *call("w", ONE)]),
    (FUNCTIONARY_V32, "Hello", [ContentDelta("Hello")]),
]  # fmt: skip


@pytest.mark.parametrize(("syntax", "text", "events"), CASES)
def test_every_split_gives_the_same_calls(syntax: ToolCallSyntax, text: str, events: Sequence[ToolEvent]) -> None:
    assert read(syntax, text) == events
    assert read(syntax, *text) == events
    for cut in range(len(text)):
        assert read(syntax, text[:cut], text[cut:]) == events


PIECES = [
    *(marker for syntax in TOOL_CALL_SYNTAXES for marker in syntax.markers),
    *'<tool_call>/{}[]":,\\ nametruw;ARGS0=()\'\n`',
    "w(city=", "<function=w>", "<parameter=city>", "</parameter>", '{"name": "w"', "w", "function",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    '<invoke name="w">', '<parameter name="city">', "</invoke>",
    "call:w{", "all\n", "w\n", "analysis", "assistant", "final", " to=functions.w",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@given(st.sampled_from([*TOOL_CALL_SYNTAXES, ARRAY]), st.lists(TEXTS, max_size=5))
def test_any_text_gives_the_same_events_whole_and_in_pieces(syntax: ToolCallSyntax, pieces: list[str]) -> None:
    events = read(syntax, "".join(pieces))
    assert read(syntax, *pieces) == events
    if not any(isinstance(event, ToolCallStart) for event in events):
        assert "".join(event.text for event in events if isinstance(event, ContentDelta)) == "".join(pieces)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from([HERMES, MISTRAL, LLAMA, ARRAY]), st.dictionaries(st.text(), JSON, max_size=3), st.booleans())
def test_any_arguments_come_through(syntax: ToolCallSyntax, arguments: dict[str, object], ascii_only: bool) -> None:
    body = json.dumps(arguments, ensure_ascii=ascii_only)
    key = "parameters" if syntax is LLAMA else "arguments"
    written = f'{{"name": "w", "{key}": {body}}}'
    text = {
        HERMES: f"<tool_call>\n{written}\n</tool_call>",
        MISTRAL: f"[TOOL_CALLS][{written}]",
        LLAMA: written,
        ARRAY: f"[{written}]",
    }[syntax]
    assert read(syntax, text) == call("w", body)


@given(st.dictionaries(st.from_regex("[a-z]{1,3}", fullmatch=True), JSON, max_size=3))
def test_any_arguments_come_through_as_python(arguments: dict[str, object]) -> None:
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    events = read(PYTHONIC, f"[w({written})]")
    assert events[0] == ToolCallStart("w")
    assert isinstance(events[1], ToolCallArguments)
    assert json.loads(events[1].text) == arguments
    assert len(events) == 2


def test_templates_are_known_by_their_markers() -> None:
    assert syntax_of_template("<tool_call>\n<function=example>") is QWEN_CODER
    assert syntax_of_template(f"{BEGIN}{CALL}") is DEEPSEEK
    assert syntax_of_template("'<|tool|>' + tools + '<|/tool|>'") is PHI
    assert syntax_of_template("start with <|tool_call|> and a list") is GRANITE
    assert syntax_of_template("[func_name1(params_name1=params_value1)]") is PYTHONIC
    assert syntax_of_template("… within <tool_call></tool_call> XML tags …") is HERMES
    assert syntax_of_template("{{ '[TOOL_CALLS]' }}") is MISTRAL
    assert syntax_of_template("{{ messages }}") is None


def test_functionary_writes_json_in_its_tags() -> None:
    assert syntax_of_template("<function=example_function_name>{{parameters}}</function>") is FUNCTIONARY
    assert read(FUNCTIONARY, f"Well.\n<function=w>{ONE}</function>") == [ContentDelta("Well.\n"), *call("w", ONE)]


TYPED = {
    "w": {
        "properties": {
            "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "count": {"$ref": "#/$defs/Count"},
            "both": {"allOf": [{"type": "number"}, {"minimum": 0}]},
            "size": {"enum": ["12", "big"]},
            "level": {"enum": [1, 2, "auto"]},
            "list": {"type": ["array", "null"]},
            "flag": {"type": "boolean"},
        },
        "$defs": {"Count": {"type": "integer"}},
    }
}


@pytest.mark.parametrize(
    ("key", "written", "meant"),
    [
        ("optional", "12345", '"12345"'),
        ("optional", "null", "null"),
        ("optional", "02134", '"02134"'),
        ("count", "5.0", "5"),
        ("count", "five", '"five"'),
        ("both", "1e3", "1e3"),
        ("size", "12", '"12"'),
        ("level", "1", "1"),
        ("level", "auto", '"auto"'),
        ("list", "[1, 2,]", "[1, 2]"),
        ("list", "None", "null"),
        ("flag", "True", "true"),
        ("other", "true", '"true"'),
    ],
)
def test_the_whole_schema_says_what_a_value_is(key: str, written: str, meant: str) -> None:
    reader = ToolParser(QWEN_CODER, TYPED)
    text = f"<function=w>\n<parameter={key}>\n{written}\n</parameter>\n</function>"
    events = merged([event for char in text for event in reader.feed(char)])
    assert events == call("w", f'{{"{key}": {meant}}}')


def test_a_list_is_emitted_as_it_comes() -> None:
    reader = ToolParser(QWEN_CODER, TYPED)
    reader.feed("<function=w>\n<parameter=list>\n[1")
    assert reader.feed(", 2") == [ToolCallArguments("1, ")]
    assert reader.feed(", 3") == [ToolCallArguments("2, ")]


@pytest.mark.parametrize(
    ("syntax", "begin", "end"),
    [
        (PYTHONIC, "[NAME(", ")]"),
        (LFM2, "<|tool_call_start|>[NAME(", ")]<|tool_call_end|>"),
        (GEMMA, "```tool_code\nNAME(", ")\n```"),
        (GEMMA4, "<|tool_call>call:NAME{", "}<tool_call|>"),
        (KIMI, "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{",
         "}<|tool_call_end|><|tool_calls_section_end|>"),
        (HARMONY, "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{", "}"),
        (MINIMAX, '<minimax:tool_call><invoke name="NAME">{', "}</invoke></minimax:tool_call>"),
        (MISTRAL, "[TOOL_CALLS]NAME[ARGS]{", "}"),
        (FUNCTIONARY_V32, "NAME\n{", "}"),
    ],
    ids=lambda part: part.name if isinstance(part, ToolCallSyntax) else "",
)  # fmt: skip
def test_names_have_what_those_of_mcp_servers_have(syntax: ToolCallSyntax, begin: str, end: str) -> None:
    name = "mcp:files/read.all-2"
    parser = ToolParser(syntax, {name: {"type": "object", "properties": {}}})
    events = [*parser.feed((begin + end).replace("NAME", name)), *parser.flush()]
    assert [(event.name if isinstance(event, ToolCallStart) else event.text) for event in events] == [name, "{}"]
