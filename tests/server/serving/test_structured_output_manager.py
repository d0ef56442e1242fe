"""Calls that a model may make follow their tools' schemas in the tags of its own syntax, without `strict` too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.admission.workers import Workers
from server.api.openai.chat import ChatCall
from server.output_parsers.families.json_formats import QWEN_CODER
from server.output_parsers.output_parser import OutputFormat
from server.serving.structured_output_manager import StructuredOutputManager
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_compiler import GrammarCompiler
from server.structured_output.output_grammar import OutputGrammar
from server.text.text_model import TextModel
from tests.fakes.grammar_walk import allowed_tokens

MANY = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture
async def manager(text_model: TextModel) -> AsyncIterator[StructuredOutputManager]:
    tokenizer = text_model.tokenizer
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, compile_grammar=CompiledGrammar.compile)
    yield StructuredOutputManager(tokenizer, tokenizer.vocab_size, OutputFormat(None, QWEN_CODER), compiler)
    compiler.close()


async def rules_of(manager: StructuredOutputManager, parameters: dict[str, Any]) -> OutputGrammar | None:
    tools = [{"type": "function", "function": {"name": "count", "parameters": parameters}}]
    body = {"messages": [{"role": "user", "content": "Count."}], "tools": tools}
    rules = await manager.rules_of(ChatCall.parse(body).request, [None], Workers())  # type: ignore[list-item]
    return rules[0] if rules else None


def is_allowed(rules: OutputGrammar, text_model: TextModel, text: str) -> bool:
    tokenizer, matcher = text_model.tokenizer, rules.matcher()
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        if token_id not in allowed_tokens(matcher, tokenizer.vocab_size):
            return False
        matcher.accept(token_id)
    return True


async def test_calls_in_tags_follow_the_schema_without_strict(
    manager: StructuredOutputManager, text_model: TextModel
) -> None:
    rules = await rules_of(manager, MANY)
    assert rules is not None
    call = "Well.\n<tool_call>\n<function=count>\n<parameter=n>\n{}\n</parameter>\n</function>\n</tool_call>\nDone."
    assert is_allowed(rules, text_model, call.format("12"))
    assert not is_allowed(rules, text_model, call.format("twelve"))
    assert not is_allowed(rules, text_model, call.format("12").replace("=n>", "=m>"))


async def test_a_schema_that_cannot_be_enforced_leaves_calls_free(
    manager: StructuredOutputManager, text_model: TextModel
) -> None:
    assert (
        await rules_of(manager, {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "whole"}}}})
        is None
    )
