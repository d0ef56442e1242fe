"""The grammars of one model's answers: structured outputs, schemas of tools, budgets of reasoning tokens."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property, partial

from engine.interface.types import QueueFull
from sampling.host.params import InvalidParameter
from server.admission.workers import Workers
from server.generation.generation_request import GenerationRequest
from server.generation.prompt_sources import MAX_INLINE_CHARS
from server.generation.prompts import PreparedPrompt, rules_behind
from server.output_parsers.families.json_formats import HERMES
from server.output_parsers.families.tool_call_syntax import ToolCallSyntax
from server.output_parsers.output_parser import OutputFormat
from server.output_parsers.tagged_lark import has_tags
from server.output_parsers.tool_call_lark import (
    LarkMarkers,
    ToolCallLark,
    arguments_lark,
    calls_or_form,
    tool_call_lark,
)
from server.protocol.structured_outputs import Grammar
from server.protocol.tools import LARGE_SCHEMAS, MAX_CALLS, FunctionDefinition, OfferedCalls, StrictCalls
from server.structured_output.argument_grammar import ArgumentGrammar, ArgumentKeys
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_compiler import GrammarCompiler
from server.structured_output.output_grammar import OutputGrammar
from server.structured_output.reasoning_grammar import EndMarker, ReasoningGrammar, ReasoningMarkers
from server.structured_output.token_table import TokenTable
from server.structured_output.tool_call_grammar import ToolCallGrammar
from server.text.detokenizer import show_control_tokens
from server.text.tokenizer import Tokenizer

MAX_KEPT = 32  # rules of calls
MAX_WAIT_SECONDS = 10.0  # for the grammar of arguments; it is compiled all the same, for the next request
MAX_TRIED = 32  # tools whose schemas are tried one by one, where they cannot be enforced together


class StructuredOutputManager:
    """Compiles the rules that the answers to a request must follow."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        answer_format: OutputFormat,
        compiler: GrammarCompiler,
        *,
        closes_objects: bool = True,
    ) -> None:
        """
        Args:
            vocab_size: of the model's logits.
            answer_format: what answers may hold beside content.
            closes_objects: whether objects have no properties that their schema does not describe, unless it says so.
        """
        self._closes_objects = closes_objects
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._format = answer_format
        self._compiler = compiler
        self._argument_keys: ArgumentKeys | None = None
        self._lock = threading.Lock()  # protects the fields below while workers make them
        self._kept: OrderedDict[tuple[Grammar, bool], ToolCallGrammar] = OrderedDict()  # the oldest first

    async def rules_of(
        self, request: GenerationRequest, prompts: Sequence[PreparedPrompt], workers: Workers
    ) -> list[OutputGrammar | None]:
        """Returns the grammar of the answers to each prompt, None for free text; empty if all are free text.

        Raises:
            InvalidParameter: a grammar is refused, takes too long, or does not allow an answer so far.
        """
        wish = request.grammar
        compiled = None
        if wish is not None:
            is_long = wish.value.is_longer(MAX_INLINE_CHARS)
            grammar = await workers.run(wish.to_grammar) if is_long else wish.to_grammar()
            if grammar is not None and request.offered_calls is not None:
                compiled = await self._form_or_calls(grammar, request.offered_calls, workers)
            if grammar is not None and compiled is None:
                compiled = await self._compile(grammar, wish.parameter)
        watched = await self._calls(request, workers) if compiled is None else None
        is_asked = compiled is not None or watched is not None or request.thinking_budget is not None
        if not is_asked:
            return []
        reasons = self._format.reasoning is not None and any(source.tools is not None for source in request.prompts)
        if not reasons and not request.num_prompt_output_tokens:
            return [compiled or watched] * len(prompts)
        return await workers.run(self._rules, request, prompts, compiled, watched)

    async def _form_or_calls(self, form: Grammar, calls: OfferedCalls, workers: Workers) -> CompiledGrammar | None:
        """The grammar of an answer of this form or a call; None where it cannot be had."""
        most = MAX_CALLS if calls.is_parallel else 1
        syntax = self._format.calls or HERMES
        try:
            made = await workers.run(calls_or_form, form, syntax, calls.tools, most, self._markers)
            return None if made is None else await self._compile(made, "tools")
        except ValueError:
            return None  # compiled alone, the form says what is wrong with it

    async def _compile(self, grammar: Grammar, parameter: str) -> CompiledGrammar:
        return await self._compiler.compile(grammar._replace(closes_objects=self._closes_objects), parameter)

    def _rules(
        self,
        request: GenerationRequest,
        prompts: Sequence[PreparedPrompt],
        compiled: CompiledGrammar | None,
        watched: OutputGrammar | None,
    ) -> list[OutputGrammar | None]:
        made: list[OutputGrammar | None] = []
        for source, prompt in zip(request.prompts, prompts, strict=True):
            rules: OutputGrammar | None = compiled or watched
            if source.tools is not None and self._format.reasoning is not None:
                rules = self._reasoned(prompt, request.thinking_budget, compiled, rules)
            made.append(None if rules is None else rules_behind(rules, prompt))
        return made

    def _reasoned(
        self, prompt: PreparedPrompt, budget: int | None, compiled: CompiledGrammar | None, behind: OutputGrammar | None
    ) -> OutputGrammar | None:
        """
        Raises:
            InvalidParameter: the vocabulary cannot write what ends the reasoning.
        """
        before = prompt.token_ids[: len(prompt.token_ids) - prompt.num_output_tokens]
        if compiled is not None and self._format.starts_after_reasoning(before, self._tokenizer):
            return compiled
        with self._lock:
            scan = self._reasoning_scan
        if budget is not None and scan.closing is None:
            raise InvalidParameter(
                "thinking_token_budget", "thinking_token_budget: the model has no tokens for what ends its reasoning"
            )
        is_open = self._format.starts_in_reasoning(before, self._tokenizer)
        return ReasoningGrammar(scan, is_open=is_open, budget=budget, behind=behind, is_form=compiled is not None)

    async def _calls(self, request: GenerationRequest, workers: Workers) -> OutputGrammar | None:
        """The grammar of calls that the model may choose to make; None where they are free.

        Raises:
            InvalidParameter: the schema of a strict tool is refused or takes too long.
        """
        watched, offered = await self._watched(request, workers), request.offered_calls
        if offered is None or not self._format.takes_others:
            return watched
        if offered.is_longer(LARGE_SCHEMAS):
            offered = await workers.run(offered.without_words)
        is_long = offered.is_longer(MAX_INLINE_CHARS)
        tools, is_single = offered.tools, not offered.is_parallel
        compiled = await self._arguments(tools, workers, is_single=is_single, is_long=is_long)
        if compiled is None and len(tools) > 1:  # one schema that cannot be enforced does not free the others
            found = [
                (tool, await self._arguments([tool], workers, is_single=is_single, is_long=is_long))
                for tool in tools[:MAX_TRIED]
            ]
            tools = [tool for tool, alone in found if alone is not None]
            compiled = await self._arguments(tools, workers, is_single=is_single, is_long=is_long) if tools else None
        if compiled is None:
            return watched
        if self._argument_keys is None:
            self._argument_keys = await workers.run(self._find_argument_keys)
        names = [tool.name for tool in tools]
        return ArgumentGrammar(self._argument_keys, compiled, names, watched, is_single=is_single)

    async def _arguments(
        self, tools: Sequence[FunctionDefinition], workers: Workers, *, is_single: bool, is_long: bool
    ) -> CompiledGrammar | None:
        """The compiled grammar of the tools' arguments; None where it cannot be had, or not soon."""
        make = partial(arguments_lark, tools, is_single=is_single)
        try:
            grammar = await workers.run(make) if is_long else make()
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                return await self._compile(grammar, "tools")
        except (ValueError, QueueFull, TimeoutError):
            return None

    def _find_argument_keys(self) -> ArgumentKeys:
        with self._lock:
            return ArgumentKeys(self._table)

    async def _watched(self, request: GenerationRequest, workers: Workers) -> ToolCallGrammar | None:
        """
        Raises:
            InvalidParameter: the schema of a tool is refused or takes too long.
        """
        calls, syntax = request.strict_calls, self._format.calls or HERMES
        if calls is not None:
            return await self._own_calls(calls, syntax, workers)
        if request.offered_calls is None or not has_tags(syntax):
            return None
        try:  # what is no JSON follows the schemas from the marker on, as JSON does from the key of the arguments on
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                return await self._own_calls(request.offered_calls.as_strict(), syntax, workers)
        except (ValueError, QueueFull, TimeoutError):
            return None

    async def _own_calls(self, calls: StrictCalls, syntax: ToolCallSyntax, workers: Workers) -> ToolCallGrammar | None:
        """The grammar of calls in the model's own syntax; None where that cannot be enforced."""
        try:
            if calls.is_longer(LARGE_SCHEMAS):
                calls = await workers.run(calls.without_words)
            if calls.is_longer(MAX_INLINE_CHARS):
                made = await workers.run(tool_call_lark, syntax, calls, self._markers)
            else:
                made = tool_call_lark(syntax, calls, self._markers)
        except ValueError as error:
            raise InvalidParameter("tools", f"tools: {error}") from error
        if made is None:
            return None
        compiled = await self._compile(made.grammar, "tools")
        is_single = calls.most == 1
        kept = self._kept.get((made.grammar, is_single))
        if kept is not None:
            return kept
        return await workers.run(self._watch, made, compiled, syntax.only_first, is_single)

    def _watch(
        self, made: ToolCallLark, compiled: CompiledGrammar, only_first: bool, is_single: bool
    ) -> ToolCallGrammar:
        with self._lock:
            watched = ToolCallGrammar(self._table, compiled, made.begins, only_first=only_first, is_single=is_single)
            self._kept[made.grammar, is_single] = watched
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return watched

    @cached_property
    def _markers(self) -> LarkMarkers:
        ids, texts = self._tokenizer.control.ids, self._tokenizer.token_bytes
        return LarkMarkers({name: token_id for name, token_id in ids.items() if not texts[token_id]})

    @cached_property
    def _table(self) -> TokenTable:
        shown = show_control_tokens(self._tokenizer, self._format.markers(with_calls=True))
        return TokenTable(shown.token_bytes, self._tokenizer.eos_token_ids, self._vocab_size)

    @cached_property
    def _reasoning_scan(self) -> ReasoningMarkers:
        syntax = self._format.reasoning
        assert syntax is not None
        table, ends = self._table, [end.encode() for end in syntax.ends]
        natural = self._tokenizer.encode(syntax.ends[0], add_special_tokens=False)
        is_exact = b"".join(table[token_id] for token_id in natural) == ends[0]
        token_ids = natural if is_exact and max(natural) < self._vocab_size else table.spell(ends[0])
        closing = None if token_ids is None else EndMarker(ends[0], token_ids)
        return ReasoningMarkers(table, [begin.encode() for begin in syntax.begins], ends, closing)
