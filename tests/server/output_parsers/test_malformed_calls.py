"""Calls that models write with a marker, a bracket or a quote missing, doubled or of another kind are still calls."""

from __future__ import annotations

import json

import pytest

from server.output_parsers.families.deepseek import DEEPSEEK
from server.output_parsers.families.gemma4 import FUNCTIONGEMMA, GEMMA4
from server.output_parsers.families.glm import GLM
from server.output_parsers.families.harmony import HARMONY
from server.output_parsers.families.json_formats import FUNCTIONARY, HERMES, LLAMA, MISTRAL, QWEN_CODER
from server.output_parsers.families.kimi import KIMI
from server.output_parsers.families.pythonic_calls import OLMO3
from server.output_parsers.families.tagged_calls import DEEPSEEK_V32, MINIMAX, SEED_OSS
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.output_parser import OutputFormat, OutputParser
from server.output_parsers.reading.parser_events import ContentDelta, ToolCallArguments, ToolCallStart
from tests.fakes.text_model import FakeTokenizer

TOKENIZER = FakeTokenizer()
SCHEMAS = {
    "w": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "n": {"type": "integer"},
            "body": {"type": "object"},
            "list": {"type": "array"},
        },
    },
    "v": {"type": "object", "properties": {}},
}
DSML = "\uff5cDSML\uff5c"
BEGIN, CALL, SEP, END, ENDS = (
    f"<\uff5c{words}\uff5c>".replace(" ", "\u2581")
    for words in ("tool calls begin", "tool call begin", "tool sep", "tool call end", "tool calls end")
)
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_CALL, KIMI_ARGUMENTS, KIMI_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
OSLO = '{"name": "w", "arguments": {"city": "Oslo"}}'


def read(syntax: ToolCallSyntax, pieces: list[str]) -> tuple[str, list[tuple[str, str]], bool]:
    """The content, the calls with their arguments, and whether these are whole."""
    parts = OutputFormat(None, syntax).of_request(may_call=True, must_call=False, schemas=SCHEMAS)
    reader = OutputParser(parts, [], TOKENIZER)
    events = [event for piece in pieces for event in reader.feed(piece, is_last=False)]
    events += reader.feed("", is_last=True)
    content, calls = "", []
    for event in events:
        match event:
            case ContentDelta(text):
                content += text
            case ToolCallStart(name):
                calls.append((name, ""))
            case ToolCallArguments(text):
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return content, calls, reader.has_whole_calls


def assert_calls(syntax: ToolCallSyntax, text: str, content: str, *calls: tuple[str, object]) -> None:
    whole = read(syntax, [text])
    assert (whole[0], [(name, json.loads(arguments)) for name, arguments in whole[1]], whole[2]) == (
        content, list(calls), True
    ), whole  # fmt: skip
    assert read(syntax, list(text)) == whole
    for cut in range(0, len(text), 3):
        assert read(syntax, [text[:cut], text[cut:]]) == whole


CITY = ("w", {"city": "Oslo"})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("<tool_call>{'name': 'w', 'arguments': {'city': 'Oslo'}}</tool_call>", [CITY]),
        ("{'name': 'w', 'arguments': {'city': 'Oslo'}}", [CITY]),
        ("```json\n{'name': 'w', 'parameters': {'city': 'Oslo'}}\n```", [CITY]),
        ("{'name': 'w', 'arguments': '{\"city\": \"Oslo\"}'}", [CITY]),
        ("<tool_call>{'name': 'w', 'arguments': {'city': \"O'Brien\", 'n': None}}</tool_call>",
         [("w", {"city": "O'Brien", "n": None})]),
        ('<tool_call>{"name": "w", "arguments": {city: "Oslo"}}</tool_call>', [CITY]),
        ('<tool_call>{"name": "w", "arguments": {"city": "Oslo" "n": 1}}</tool_call>',
         [("w", {"city": "Oslo", "n": 1})]),
        (f"<tool_call>{OSLO[:-1]}</tool_call>", [CITY]),
        (f"<tool_call>{OSLO[:-2]}</tool_call>", [CITY]),
        ('<tool_call>{"name": "w", "arguments": {"n": 1</tool_call>', [("w", {"n": 1})]),
        ('<tool_call>{"name": "w", "arguments": {"list": [1, {"a": true</tool_call>',
         [("w", {"list": [1, {"a": True}]})]),
        (f"<tool_call>{OSLO}}}</tool_call>", [CITY]),
        ('<tool_call>{"name": "w", "arguments": {"city": "Oslo"]}</tool_call>', [CITY]),
        ('<tool_call>{"name": "w", "arguments": {"list": [{"a": 1}, {"a": 2}}}</tool_call>',
         [("w", {"list": [{"a": 1}, {"a": 2}]})]),
        (f"{OSLO}}}", [CITY]),
        (f"<tools>{OSLO[:-2]}</tools>", [CITY]),
        (f"<tools>{OSLO[:-1]}</tools>", [CITY]),
        (f"<tool_call>{OSLO}<tool_call>{OSLO}</tool_call>", [CITY, CITY]),
        (f"<tool_call>\n{OSLO}\n{OSLO}\n</tool_call>", [CITY, CITY]),
        (f"<tool_call>\n<tool_call>\n{OSLO}\n</tool_call>\n</tool_call>", [CITY]),
        (f"<tool_call>[{OSLO}, {OSLO}]</tool_call>", [CITY, CITY]),
        ('<tool_call>{"name": "v", "arguments": []}</tool_call>', [("v", {})]),
        ('<tool_call>{"function": "w", "arguments": {"city": "Oslo"}}</tool_call>', [CITY]),
        ('{"tool": "w", "args": {"city": "Oslo"}}', [CITY]),
        ('<tool_call>w({"city": "Oslo"})</tool_call>', [CITY]),
        ('<tool_call>w(city="Oslo")</tool_call>', [CITY]),
        ("<tool_call>{“name”: “w”, “arguments”: {“city”: “Oslo”}}</tool_call>", [CITY]),
        ('<tool_call>{"name": "w", "arguments": {"city": "the "old" Oslo", "n": 1}}</tool_call>',
         [("w", {"city": 'the "old" Oslo', "n": 1})]),
        ('<tool_call>\nw\n{"city": "Oslo"}\n</tool_call>', [CITY]),
        ('<tool_call>\n{"w": {"city": "Oslo"}}\n</tool_call>', [CITY]),
        ('<tool_call>\n<function name="w">\n<parameter name="city">Oslo</parameter></function>\n</tool_call>', [CITY]),
        (f"<longcat_tool_call>{OSLO}</longcat_tool_call>", [CITY]),
        (f"<|action_start|><|plugin|>\n{OSLO}<|action_end|>", [CITY]),
        ('{"type": "tool_use", "id": "1", "name": "w", "input": {"city": "Oslo"}}', [CITY]),
        ('<function=w>{"city": "Oslo"}</function>', [CITY]),
        ("<function=w>\n<parameter=city>\nOslo\n</parameter>\n</function>", [CITY]),
        ("<function=w><parameter=city>Oslo</parameter><function=v></function>", [CITY, ("v", {})]),
        ('<invoke name="w"><parameter name="city">Oslo</parameter><invoke name="v"></invoke>', [CITY, ("v", {})]),
        ('<function_calls>\n<invoke name="w">\n<parameter name="city">Oslo</parameter>\n</invoke>\n</function_calls>',
         [CITY]),
    ],
)  # fmt: skip
def test_json_that_is_nearly_a_call(text: str, calls: list[tuple[str, object]]) -> None:
    assert_calls(HERMES, text, "", *calls)
    if not text.startswith("<"):
        assert_calls(HERMES, f"I look.\n{text}", "I look.\n", *calls)


BODY = '{"mode": "CLEAN", "on": true}'


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (f"<tool_call>\n<function=w>\n<parameter=body>\n{BODY}\n</function>\n</tool_call>",
         [("w", {"body": json.loads(BODY)})]),
        ("<tool_call>\n<function=w>\n<parameter=city>\nOslo\n</function>\n</tool_call>", [CITY]),
        ("<tool_call>\n<function=w>\n<parameter=n>\n5\n</function>\n</tool_call>", [("w", {"n": 5})]),
        ("<tool_call>\n<function=w>\n<parameter=city>\nOslo\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>",
         [("w", {"city": "Oslo", "n": 5})]),
        (f"<tool_call>\n<function=w>\n<parameter=body>\n{BODY}\n<parameter=n>\n5\n</function>\n</tool_call>",
         [("w", {"body": json.loads(BODY), "n": 5})]),
        ("<tool_call>\n<function=w>\n<parameter=city>\nOslo\n</parameter>\n</tool_call>", [CITY]),
        ("<tool_call>\n<function=w>\n<parameter=city>\nOslo\n</parameter>\n<function=v>\n</function>\n</tool_call>",
         [CITY, ("v", {})]),
        ("<tool_call>\n<function=w>\n<parameter=city>\nOslo\n</function>\n<function=v>\n</function>\n</tool_call>",
         [CITY, ("v", {})]),
        ("<tool_call>\n<function=v>\n</function>\n<function=v>\n</function>\n</tool_call>", [("v", {}), ("v", {})]),
        ("<tool_call>\n<tool_call>\n<function=w>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
         [CITY]),
        ("<tool_call>\n<function=v>\n</tool_call>", [("v", {})]),
    ],
)  # fmt: skip
def test_tags_of_arguments_that_are_missing(text: str, calls: list[tuple[str, object]]) -> None:
    assert_calls(QWEN_CODER, text, "", *calls)
    assert_calls(QWEN_CODER, f"I look.\n{text}\n", "I look.\n", *calls)
    assert_calls(HERMES, text, "", *calls)
    if text.startswith("<tool_call>\n<function=") and "<function=v>\n</function>\n</tool_call>" not in text:
        assert_calls(SEED_OSS, text.replace("tool_call>", "seed:tool_call>"), "", *calls)


@pytest.mark.parametrize(
    "value",
    [
        "a </function> b",
        "x <parameter=other> y",
        "</function>",
        "<tool_call>",
        "</tool_call>",
        "<parameter=",
        "a <\n< b",
    ],
)
def test_tags_within_a_value_that_is_closed_belong_to_it(value: str) -> None:
    text = f"<tool_call>\n<function=w>\n<parameter=city>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert_calls(QWEN_CODER, text, "", ("w", {"city": value}))


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<invoke name="w">\n<parameter name="city">Oslo</parameter>\n</invoke>\n</minimax:tool_call>', [CITY]),
        ('<invoke name="w"><parameter name="city">Oslo</parameter></invoke>', [CITY]),
        ('<minimax:tool_call>\n<invoke name="w"><parameter name="city">Oslo</invoke>\n</minimax:tool_call>', [CITY]),
        ('<minimax:tool_call><invoke name="v"/></minimax:tool_call>', [("v", {})]),
        ('<minimax:tool_call>\n<invoke name="w">\n<parameter name="city">a </minimax:tool_call> b</parameter></invoke>'
         "</minimax:tool_call>", [("w", {"city": "a </minimax:tool_call> b"})]),
        ('<minimax:tool_call>\n<minimax:tool_call>\n<invoke name="v"></invoke>\n</minimax:tool_call>', [("v", {})]),
    ],
)  # fmt: skip
def test_blocks_without_their_tags(text: str, calls: list[tuple[str, object]]) -> None:
    assert_calls(MINIMAX, text, "", *calls)
    dsml = text.replace("minimax:tool_call", f"{DSML}tool_calls")
    for name in ("invoke", "parameter"):
        dsml = dsml.replace(f"<{name}", f"<{DSML}{name}").replace(f"</{name}", f"</{DSML}{name}")
    of_dsml = json.loads(json.dumps(calls).replace("minimax:tool_call", f"{DSML}tool_calls"))
    assert_calls(DEEPSEEK_V32, dsml, "", *map(tuple, of_dsml))


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("<tool_call>w<arg_key>city</arg_key></arg_key><arg_value>Oslo</arg_value></tool_call>", [CITY]),
        ("<tool_call>w<arg_key><arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>", [CITY]),
        ("<tool_call>w<arg_key>city</arg_key>Oslo</arg_value></tool_call>", [CITY]),
        ("<tool_call>w city</arg_key><arg_value>Oslo</arg_value></tool_call>", [CITY]),
        ("<tool_call>wcity</arg_key><arg_value>Oslo</arg_value><arg_key>n</arg_key><arg_value>5</arg_value></tool_call>",
         [("w", {"city": "Oslo", "n": 5})]),
        ("<tool_call>w<arg_key>city</arg_key><arg_value>Oslo</arg_value></arg_value></tool_call>", [CITY]),
        ("<tool_call><tool_call>v</tool_call>", [("v", {})]),
        ("<tool_call>w<arg_key>city</arg_key><arg_value>Oslo</tool_call><tool_call>v</tool_call>", [CITY, ("v", {})]),
    ],
)  # fmt: skip
def test_tags_of_glm(text: str, calls: list[tuple[str, object]]) -> None:
    assert_calls(GLM, text, "", *calls)


DOUBLED = '{{"name": "w", "arguments": {"city": "Oslo"}}}'


@pytest.mark.parametrize(
    ("text", "content", "num_calls"),
    [
        (DOUBLED, "", 1),
        (f"```json\n{DOUBLED}\n```", "", 1),
        (f"<tool_call>\n{DOUBLED}\n</tool_call>", "", 1),
        (f"<tool_call>{DOUBLED}</tool_call>\n<tool_call>{DOUBLED}</tool_call>", "", 2),
        (f"[{DOUBLED}, {DOUBLED}]", "", 2),
        (f"{DOUBLED}\n{DOUBLED}", "", 2),
        (f"I call.\n{DOUBLED}", "I call.\n", 1),
    ],
)
def test_doubled_braces(text: str, content: str, num_calls: int) -> None:
    assert_calls(HERMES, text, content, *[CITY] * num_calls)


@pytest.mark.parametrize("text", [f"Write {DOUBLED} to call it.", '{{"name": "x", "arguments": {}}}', '{{"a": 1}}'])
def test_doubled_braces_of_what_is_no_call_stay(text: str) -> None:
    assert read(HERMES, [text]) == (text, [], False) == read(HERMES, list(text))


SAID = '<|"|>'


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("call:w{city:<Oslo>,n:5}", [("w", {"city": "Oslo", "n": 5})]),
        ("call:default:w{city:<Oslo>}", [CITY]),
        ("call:w(city=<Oslo>, n=5)", [("w", {"city": "Oslo", "n": 5})]),
        ("call:w{city:'Oslo'}", [CITY]),
        ('call:w{city:"has } brace"}', [("w", {"city": "has } brace"})]),
        ("call:w{city:Oslo>}", [CITY]),
        ("call:w{city:Oslo, Norway>,n:5}", [("w", {"city": "Oslo, Norway", "n": 5})]),
        ("call:w{city:<Oslo>n:5}", [("w", {"city": "Oslo", "n": 5})]),
        ("call:w{city:<r = sql(<<< SELECT <<<).df()\nprint(<Result: >, r)>,n:5}",
         [("w", {"city": 'r = sql(""" SELECT """).df()\nprint("Result: ", r)', "n": 5})]),
        ("call:w{list:[<a>,<b>],city:<said \"hi\" {x}>}", [("w", {"list": ["a", "b"], "city": 'said "hi" {x}'})]),
        ("call:w{body:{message:<How are you?>},n:5}", [("w", {"body": {"message": "How are you?"}, "n": 5})]),
    ],
)  # fmt: skip
def test_quotes_of_gemma(text: str, calls: list[tuple[str, object]]) -> None:
    """The mark around texts is written as < and > here."""
    written = text.replace("<", "\0").replace(">", "\0").replace("\0", SAID)
    assert_calls(GEMMA4, f"<|tool_call>{written}<tool_call|>", "", *calls)
    escaped = f"<start_function_call>{written.replace(SAID, '<escape>')}<end_function_call>"
    assert_calls(FUNCTIONGEMMA, f"I call.{escaped}", "I call.", *calls)


def test_white_space_behind_a_text_is_not_held_back_without_end() -> None:
    text = f"<|tool_call>call:w{{city:{SAID}Oslo{SAID}{' ' * 2000}"
    assert read(GEMMA4, [text]) == ("", [("w", '{"city": "Oslo"')], False)
    assert read(GEMMA4, [text, ",n:5}<tool_call|>"]) == ("", [("w", '{"city": "Oslo", "n": 5}')], True)


@pytest.mark.parametrize(
    "text",
    [
        f'{SECTION}{KIMI_CALL}functions.w:0{KIMI_ARGUMENTS}{{"city": "Oslo"}}{SECTION_END}',
        f'{SECTION}functions.w:0{KIMI_ARGUMENTS}{{"city": "Oslo"}}{SECTION_END}',
        f'{SECTION} I call. {KIMI_CALL}functions.w:0{KIMI_ARGUMENTS}{{"city": "Oslo"}}{KIMI_END}{SECTION_END}',
        f'{SECTION}{SECTION}{KIMI_CALL}w:0{KIMI_ARGUMENTS}{{"city": "Oslo"}}{KIMI_END}{SECTION_END}',
        f'<|tool_call_section_begin|>{KIMI_CALL}w{KIMI_ARGUMENTS}{{"city": "Oslo"}}{KIMI_END}<|tool_call_section_end|>',
    ],
)
def test_markers_of_kimi(text: str) -> None:
    assert_calls(KIMI, text, "", CITY)


@pytest.mark.parametrize(
    "text",
    [
        f'{CALL}function{SEP}w\n```json\n{{"city": "Oslo"}}\n```{END}{ENDS}',
        f'{BEGIN}{BEGIN}{CALL}w{SEP}{{"city": "Oslo"}}{END}{ENDS}',
        f'{BEGIN}{CALL}function{SEP}w\n{{"city": "Oslo"}}\n{END}{ENDS}',
        f'{BEGIN}{CALL}function{SEP}w\n```\n{{"city": "Oslo"}}\n```{END}{ENDS}',
    ],
)
def test_markers_of_deepseek(text: str) -> None:
    assert_calls(DEEPSEEK, text, "", CITY)


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS]w{"city": "Oslo"}',
        f"[TOOL_CALLS]{OSLO}",
        "[TOOL_CALLS][{'name': 'w', 'arguments': {'city': 'Oslo'}}]",
    ],
)
def test_forms_of_mistral(text: str) -> None:
    assert_calls(MISTRAL, text, "", CITY)
    assert_calls(MISTRAL, f"Yes.{text}{text}", "Yes.", CITY, CITY)


def test_headers_of_harmony_without_a_message_are_not_shown() -> None:
    call = '<|channel|>commentary to=functions.w <|constrain|>json<|message|>{"city": "Oslo"}'
    assert_calls(HARMONY, f"<|channel|>commentary?<|end|><|start|>assistant{call}", "", CITY)
    doubled = f"<|channel|>commentary to=assistant<|channel|>commentary?<|message|>Hm.<|end|><|start|>assistant{call}"
    assert_calls(HARMONY, doubled, "Hm.", CITY)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>I think", "<tool_call>w is a tool", "<tool_call>w(1)", "<tool_call>x{}",
        "<function=w> is how a call begins", '<invoke name="w"> too', "<tool_call><function=w> as well",
    ],
)  # fmt: skip
def test_words_behind_a_marker_are_text(text: str) -> None:
    assert read(HERMES, [text]) == (text, [], False) == read(HERMES, list(text))


@pytest.mark.parametrize("behind", ["<function=x>y</function>", "<function=x> is none", "<function="])
def test_text_behind_a_call_that_begins_as_another_one_stays(behind: str) -> None:
    text = f"<function=w><parameter=city>Oslo</parameter></function>{behind}"
    whole = read(HERMES, [text])
    assert whole == (behind, [("w", '{"city": "Oslo"}')], True) == read(HERMES, list(text))


@pytest.mark.parametrize("behind", ["<tool_call", "<arg", "<b>", "and"])
def test_text_that_ends_a_call_before_its_end_stays(behind: str) -> None:
    text = f"<tool_call>w<arg_key>city</arg_key><arg_value>Oslo</arg_value>{behind} are words"
    whole = read(GLM, [text])
    assert whole == (f"{behind} are words", [("w", '{"city": "Oslo"')], False) == read(GLM, list(text))


@pytest.mark.parametrize("before", ["w(city='", '<w city="', "<w><city>Oslo", "Action: w\n", '{"name": "w"'])
def test_text_that_has_begun_as_a_call_before_one_stays(before: str) -> None:
    text = f"{before}<tool_call>{OSLO}</tool_call>"
    whole = read(HERMES, [text])
    assert whole == (before, [("w", '{"city": "Oslo"}')], True) == read(HERMES, list(text))


def test_a_call_whose_tag_never_comes_is_cut() -> None:
    assert read(FUNCTIONARY, ["<function=w>\n<parameter=city>\nOslo\n"])[2] is False
    assert_calls(FUNCTIONARY, "<function=w>\n<parameter=city>\nOslo\n</function>", "", CITY)


def test_calls_in_python() -> None:
    assert_calls(LLAMA, '<|python_tag|>w.call(city="Oslo")', "", CITY)
    text = "<function_calls>\nw(city='Oslo')\nv()\n</function_calls>"
    assert_calls(OLMO3, text, "", CITY, ("v", {}))
    assert_calls(OLMO3, f"I look.\n{text}\nSo.", "I look.\nSo.", CITY, ("v", {}))
