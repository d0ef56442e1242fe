"""Answers in the syntaxes of families that mark reasoning, texts and calls: what is shown, with tools and without."""

from __future__ import annotations

import pytest

from server.api.openai.chat_deltas import ChatDeltaParser
from server.output_parsers.families.functionary import FUNCTIONARY_V32
from server.output_parsers.families.gemma4 import GEMMA4
from server.output_parsers.families.glm import GLM
from server.output_parsers.families.harmony import HARMONY
from server.output_parsers.families.json_formats import APERTUS, COHERE, HERMES, NEMOTRON
from server.output_parsers.families.kimi import KIMI
from server.output_parsers.families.lfm2 import LFM2
from server.output_parsers.families.minimax_m3 import MINIMAX_M3
from server.output_parsers.families.step3 import STEP3
from server.output_parsers.families.tagged_calls import DEEPSEEK_V32, MINIMAX
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.output_parser import OutputFormat, OutputParser
from server.output_parsers.reading.parser_events import (
    ContentDelta,
    ParserEvent,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
    merged,
)
from server.output_parsers.reasoning_parser import COHERE as COHERE_REASONING
from server.output_parsers.reasoning_parser import GEMMA4 as GEMMA4_REASONING
from server.output_parsers.reasoning_parser import HARMONY as HARMONY_REASONING
from server.output_parsers.reasoning_parser import choose_reasoning
from server.output_parsers.tool_call_syntaxes import syntax_of_template
from server.text.chat_template import ChatTemplate
from tests.fakes.text_model import FakeTokenizer

TOKENIZER = FakeTokenizer()
SCHEMAS = {"w": {"type": "object", "properties": {"n": {"type": "integer"}}}}
OF_W = [ToolCallStart("w"), ToolCallArguments('{"n": 1}')]
SEARCH = "<|channel|>commentary to=functions.w <|constrain|>json<|message|>"
GPT_OSS = OutputFormat(HARMONY_REASONING, HARMONY)
GEMMA_4 = OutputFormat(GEMMA4_REASONING, GEMMA4)
COMMAND = OutputFormat(COHERE_REASONING, COHERE)


def read(parts: OutputFormat, *pieces: str, prompt: str = "") -> list[ParserEvent]:
    reader = OutputParser(parts, list(prompt.encode()), TOKENIZER)
    events = [event for piece in pieces for event in reader.feed(piece, is_last=False)]
    return merged([*events, *reader.feed("", is_last=True)])


CASES: list[tuple[OutputFormat, str, list[ParserEvent]]] = [
    (GPT_OSS, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
     [ReasoningDelta("Hm."), ContentDelta("Yes.")]),
    (GPT_OSS, f'<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{SEARCH}{{"n": 1}}<|call|>',
     [ReasoningDelta("Hm."), *OF_W]),
    (GPT_OSS, f'<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>'
     f'So?<|end|><|start|>assistant{SEARCH}{{"n": 1}}',
     [ContentDelta("I look."), ReasoningDelta("So?"), *OF_W]),
    (GPT_OSS, "<|channel|>final<|message|>Yes", [ContentDelta("Yes")]),
    (GEMMA_4, "<|channel>thought\nHm.\n<channel|>I look.<|tool_call>call:w{n:1}<tool_call|>",
     [ReasoningDelta("Hm."), ContentDelta("I look."), *OF_W]),
    (COMMAND, '<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "w", '
     '"parameters": {"n": 1}}\n]<|END_ACTION|>',
     [ReasoningDelta("Hm."), *OF_W]),
    (COMMAND, "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
     [ReasoningDelta("Hm."), ContentDelta("Yes.")]),
    (OutputFormat(None, FUNCTIONARY_V32), 'all\nI look.>>>w\n{"n": 1}', [ContentDelta("I look."), *OF_W]),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "text", "events"), CASES)
def test_reasoning_texts_and_calls_come_apart_wherever_the_text_is_cut(
    parts: OutputFormat, text: str, events: list[ParserEvent]
) -> None:
    parts = parts.of_request(may_call=True, must_call=False, schemas=SCHEMAS)
    assert read(parts, text) == events
    assert read(parts, *text) == events
    for cut in range(len(text)):
        assert read(parts, text[:cut], text[cut:]) == events


@pytest.mark.parametrize(("parts", "text", "events"), CASES)
def test_without_tools_the_markup_is_not_shown(parts: OutputFormat, text: str, events: list[ParserEvent]) -> None:
    parts = parts.of_request(may_call=False, must_call=False)
    if parts.calls is not None:
        assert read(parts, text) == [event for event in events if isinstance(event, ContentDelta | ReasoningDelta)]


def test_forced_calls_stand_behind_the_reasoning() -> None:
    text = '<|channel|>analysis<|message|>Hm.<|end|>[{"name": "w", "arguments": {"n": 1}}]'
    parts = GPT_OSS.of_request(may_call=True, must_call=True, schemas=SCHEMAS)
    assert read(parts, text) == [ReasoningDelta("Hm."), *OF_W]


def test_a_prompt_that_closes_the_thoughts_is_seen() -> None:
    prompt = "<|turn>model\n<|channel>thought\n<channel|>"
    parts = GEMMA_4.of_request(may_call=True, must_call=False, schemas=SCHEMAS)
    assert parts.starts_after_reasoning(list(prompt.encode()), TOKENIZER)
    assert read(parts, "Yes.", prompt=prompt) == [ContentDelta("Yes.")]


@pytest.mark.parametrize(
    ("source", "syntax", "reasoning"),
    [
        ("<|start|>assistant<|channel|>analysis<|message|>", HARMONY, "openai_gptoss"),
        ("{{- '<|tool_call>call:' + function['name'] }}{{ '<|channel>thought\n<channel|>' }}", GEMMA4, "gemma4"),
        ("<|START_THINKING|><|END_THINKING|><|START_ACTION|>[", COHERE, "cohere_command"),
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key> <think></think>", GLM, "qwen3"),
        ("{%- set begin = '<minimax:tool_call>' -%} <tool_call>", MINIMAX, None),
        ("{%- set token = ']<]minimax[>[' -%} <tool_call> <mm:think>", MINIMAX_M3, "minimax_m3"),
        ("<\uff5ctool_calls_begin\uff5c> <steptml:invoke name=", STEP3, None),
        ("<|tool_calls_section_begin|><|tool_call_begin|>", KIMI, None),
        ("{%- set dsml_token = '\uff5cDSML\uff5c' -%}", DEEPSEEK_V32, None),
        ("List of tools: <|tool_list_start|>[", LFM2, None),
        ("<TOOLCALL>[", NEMOTRON, None),
        ("{{ '>>>all\n' + message['content'] }}", FUNCTIONARY_V32, None),
        ("{%- set tool_calls_token = '<|tools_prefix|>' -%}", APERTUS, None),
        ("<tool_call>\n{\"name\": <function-name>", HERMES, None),
    ],
)  # fmt: skip
def test_templates_show_their_family(source: str, syntax: ToolCallSyntax, reasoning: str | None) -> None:
    assert syntax_of_template(source) is syntax
    template = ChatTemplate("{% raw %}" + source + "{% endraw %}")
    found = choose_reasoning(None, template)
    assert (found and found.name) == reasoning


def test_a_chat_keeps_the_ids_that_kimi_gives_and_has_none_twice() -> None:
    call = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    written = "".join(map(call.format, ("functions.w:0", "functions.w:0", "w")))
    parts = OutputFormat(None, KIMI).of_request(may_call=True, must_call=False, schemas=SCHEMAS)
    message = ChatDeltaParser(parts, [], TOKENIZER).message(
        f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>", []
    )
    ids = [called["id"] for called in message["tool_calls"]]
    assert ids[0] == "functions.w:0"
    assert len(set(ids)) == 3
