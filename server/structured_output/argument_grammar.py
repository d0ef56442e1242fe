"""The grammar of outputs in which the arguments of calls in JSON follow the tools' schemas, wherever a call is written.

A call is known by its name and the key of its arguments: `{"name": "get_weather", "arguments"`. What stands around it
is free, or follows the grammar of the model's own syntax of calls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from typing import Self

import numpy as np

from sampling.host.grammar import GrammarError
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_matcher import GrammarMatcher
from server.structured_output.output_grammar import AdvancedGrammar, OutputGrammar
from server.structured_output.token_table import TokenTable
from server.structured_output.tool_call_grammar import ToolCallGrammar

KEYS = (b"arguments", b"parameters")
NAME_END = b"\n"  # behind a name in what the grammar of arguments reads
MAX_HEAD_BYTES = 400  # from a call's brace to its arguments
MAX_WRAPPER_BYTES = 200  # before the first call of an output
_WRAPPER = re.compile(rb"\s*(?:```[A-Za-z0-9_+-]*\s*)?(?:<[A-Za-z0-9_|-]+>\s*)*\[?\s*(?:\{\s*)?")
_OWN_MARKER = re.compile(rb"<\|?tool_call\|?>\s*\[?\s*$")


class ArgumentKeys:
    """The tokens that complete the key of a call's arguments and go on behind it. It is made once for a model.

    The constructor searches the vocabulary.
    """

    def __init__(self, table: TokenTable) -> None:
        self.table = table
        quoted = [(token_id, table[token_id]) for token_id in table.ids_with(b'"')]
        refused: dict[bytes, list[int]] = {}
        for key in KEYS:
            for size in range(len(key) + 1):
                refused.setdefault(key[:size], []).extend(_crossings(quoted, key[size:] + b'"'))
        self._refused = {part: table.mask_of(token_ids) for part, token_ids in refused.items() if token_ids}

    def refused(self, part: bytes) -> np.ndarray | None:
        """The mask of the tokens that may not come behind a part of the key; None where all may."""
        return self._refused.get(part)


def _crossings(tokens: Sequence[tuple[int, bytes]], rest: bytes) -> list[int]:
    """The tokens that begin with `rest` and go on with anything but a colon and white space."""
    size = len(rest)
    return [
        token_id
        for token_id, text in tokens
        if text.startswith(rest) and text[size:] not in (b"", b":", b": ", b" :", b" : ")
    ]


class ArgumentGrammar:
    """The grammar of outputs that may call some tools.

    Args:
        grammar: of a tool's name, NAME_END, and what stands behind the key of its arguments.
        names: of the tools.
        around: the grammar of calls in the model's own syntax; None where these are free.
        is_single: whether the output ends behind a call, unless that stands behind other text.
    """

    def __init__(
        self,
        keys: ArgumentKeys,
        grammar: CompiledGrammar,
        names: Sequence[str],
        around: ToolCallGrammar | None,
        *,
        is_single: bool,
    ) -> None:
        self.keys, self.grammar, self.around, self.is_single = keys, grammar, around, is_single
        named = b"|".join(re.escape(name.encode()) for name in names)
        begin = rb'\{\s*(?:"(?:id|type)"\s*:\s*"[^"]{0,64}"\s*,\s*){0,2}"name"\s*:\s*"(' + named + rb')"\s*'
        self.head = re.compile(begin + rb',\s*"(?:arguments|parameters)"')
        self.named_head = re.compile(begin + rb',\s*"[a-z]*')

    @property
    def ends_output(self) -> bool:
        return self.is_single

    def matcher(self) -> ArgumentMatcher:
        return ArgumentMatcher(self)

    def after(self, token_ids: Sequence[int]) -> OutputGrammar:
        return AdvancedGrammar.read(self.matcher(), token_ids, self.keys.table.end_token_ids)

    def begin(self, name: bytes, rest: bytes) -> GrammarMatcher:
        """The matcher of the arguments of the tool `name`, of which `rest` has come already.

        Raises GrammarError if no arguments go on like that.
        """
        matcher = self.grammar.matcher()
        spelled = self.keys.table.spell(name + NAME_END + rest)
        if spelled is None:
            raise GrammarError("the vocabulary cannot write the name of a tool byte by byte")
        for token_id in spelled:
            matcher.accept(token_id)
        return matcher


class ArgumentMatcher:
    """The `sampling.host.grammar.TokenMatcher` of one output that may call tools."""

    def __init__(self, rules: ArgumentGrammar) -> None:
        self._rules = rules
        self._table = rules.keys.table
        self._around = None if rules.around is None else rules.around.matcher()
        self._arguments: GrammarMatcher | None = None
        self._tail = b""  # from the brace on that may begin a call
        self._last = b""  # the end of the output so far, where it matters whether a call stands alone
        self._num_bytes = 0
        self._ends_behind = False  # whether the output ends with the arguments that are being read
        self._is_over = False

    @property
    def ends_output(self) -> bool:
        return self._rules.ends_output

    def copy(self) -> Self:
        other = copy(self)
        other._around = None if self._around is None else self._around.copy()
        other._arguments = None if self._arguments is None else self._arguments.copy()
        return other

    def accept(self, token_id: int) -> None:
        if self._is_over:
            return
        if self._arguments is not None:
            try:
                self._arguments.accept(token_id)
            except GrammarError:  # nothing has masked the token; what has come is an answer all the same
                self._arguments = None
            self._end_arguments(self._table[token_id])
            return
        if self._around is not None:
            self._around.accept(token_id)
            if self._around.is_within_call:
                self._tail = b""
                return
        data = self._table[token_id]
        if self._rules.is_single:
            self._num_bytes += len(data)
            self._last = (self._last + data)[-MAX_WRAPPER_BYTES - MAX_HEAD_BYTES :]
        if self._tail or b"{" in data:
            self._read(self._tail + data)

    def fill_mask(self, words: np.ndarray) -> None:
        if self._is_over:
            words[:] = self._table.end_mask
        elif self._arguments is not None:
            self._arguments.fill_mask(words)
        else:
            if self._around is None:
                words[:] = self._table.everything
            else:
                self._around.fill_mask(words)
            if self._tail and self._rules.named_head.fullmatch(self._tail):
                refused = self._rules.keys.refused(self._tail.rpartition(b'"')[2])
                if refused is not None:
                    words &= ~refused

    def _read(self, text: bytes) -> None:
        found = self._rules.head.search(text)
        if found is None:
            begin = text.rfind(b"{")
            self._tail = text[begin:] if begin >= 0 and len(text) - begin <= MAX_HEAD_BYTES else b""
            return
        self._tail = b""
        try:
            self._arguments = self._rules.begin(found[1], text[found.end() :])
        except GrammarError:
            return  # a token that completes the key and goes on otherwise, where nothing has masked it
        self._ends_behind = self._rules.is_single and self._stands_alone(len(text) - found.start())
        self._end_arguments(text[found.end() :])

    def _stands_alone(self, num_bytes: int) -> bool:
        """Whether nothing but a wrapper, or the marker of a call, stands before the last `num_bytes`."""
        before = self._last[:-num_bytes]
        is_whole = self._num_bytes <= MAX_WRAPPER_BYTES + MAX_HEAD_BYTES
        return (is_whole and _WRAPPER.fullmatch(before) is not None) or _OWN_MARKER.search(before) is not None

    def _end_arguments(self, last: bytes) -> None:
        """Leaves the arguments if they are whole with the text `last`, which may begin the next call too."""
        if self._arguments is not None and b"}" in last and self._arguments.is_accepting:
            self._arguments = None
            self._is_over = self._ends_behind
            if not self._is_over and b"{" in last:
                self._read(last)
