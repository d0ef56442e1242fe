"""The grammar of outputs that may call tools: any text, and behind a call's marker what the tools' schemas allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Self

import numpy as np

from sampling.host.grammar import GrammarError
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_matcher import GrammarMatcher
from server.structured_output.marker_scanner import SPACE, FoundMarker, MarkerScanner
from server.structured_output.output_grammar import AdvancedGrammar, OutputGrammar
from server.structured_output.token_table import TokenTable

SEPARATORS = SPACE + b";,"  # between calls that can only be the whole of an answer


class ToolCallGrammar:
    """The grammar of outputs with calls in one syntax.

    The constructor searches the vocabulary.

    Args:
        grammar: of what follows the marker of a call.
        begins: the markers, each with the part of it that the grammar reads too.
        only_first: whether calls can only be the whole of an output, from its first character on.
        is_single: whether the output ends behind a call.
    """

    def __init__(
        self,
        table: TokenTable,
        grammar: CompiledGrammar,
        begins: Mapping[bytes, bytes],
        *,
        only_first: bool,
        is_single: bool,
    ) -> None:
        self.table, self.grammar, self.begins = table, grammar, begins
        self.only_first, self.is_single = only_first, is_single
        self.scan = MarkerScanner(table, list(begins), only_first=SPACE if only_first else None)
        self.scan_behind = MarkerScanner(table, list(begins), only_first=SEPARATORS) if only_first else self.scan
        self._taken: dict[FoundMarker, bool] = {}
        self._masks = {
            (is_behind, tail): self._mask(scan, tail)
            for is_behind, scan in ((False, self.scan), (True, self.scan_behind))
            for tail in scan.tails
        }

    @property
    def ends_output(self) -> bool:
        return self.is_single

    def matcher(self) -> ToolCallMatcher:
        return ToolCallMatcher(self)

    def after(self, token_ids: Sequence[int]) -> OutputGrammar:
        return AdvancedGrammar.read(self.matcher(), token_ids, self.table.end_token_ids)

    def mask(self, tail: bytes, *, is_behind_call: bool) -> np.ndarray:
        """The tokens that may come behind `tail`, outside of calls: all but those that would begin a wrong call."""
        return self._masks[is_behind_call, tail]

    def begin(self, found: FoundMarker) -> GrammarMatcher:
        """The matcher of a call whose marker has come, and perhaps more; raises GrammarError if none fits."""
        matcher = self.grammar.matcher()
        spelled = self.table.spell(self.begins[found.marker] + found.rest)
        if spelled is None:
            raise GrammarError("the vocabulary cannot write the bytes behind a call's marker one by one")
        for token_id in spelled:
            matcher.accept(token_id)
        return matcher

    def _mask(self, scan: MarkerScanner, tail: bytes) -> np.ndarray:
        refused = [crossing.token_id for crossing in scan.crossings(tail) if not self._takes(crossing.found)]
        return self.table.everything & ~self.table.mask_of(refused) if refused else self.table.everything

    def _takes(self, found: FoundMarker) -> bool:
        taken = self._taken.get(found)
        if taken is None:
            try:
                self.begin(found)
                taken = True
            except GrammarError:
                taken = False
            self._taken[found] = taken
        return taken


class ToolCallMatcher:
    """The `sampling.host.grammar.TokenMatcher` of one output that may call tools."""

    def __init__(self, rules: ToolCallGrammar) -> None:
        self._rules = rules
        self._call: GrammarMatcher | None = None
        self._tail: bytes | None = b""  # None: no call can come any more
        self._is_behind_call = False
        self._is_over = False

    @property
    def ends_output(self) -> bool:
        return self._rules.ends_output

    @property
    def is_within_call(self) -> bool:
        return self._call is not None

    def copy(self) -> Self:
        other = copy(self)
        other._call = None if self._call is None else self._call.copy()
        return other

    def accept(self, token_id: int) -> None:
        if self._is_over:
            if token_id not in self._rules.table.end_token_ids:
                raise GrammarError(f"token {token_id} follows the only call that the answer may have")
            return
        if self._call is not None:
            self._call.accept(token_id)
            self._end_call()
        elif self._tail is not None:
            scan = self._rules.scan_behind if self._is_behind_call else self._rules.scan
            step = scan.step(self._tail, self._rules.table[token_id])
            if isinstance(step, FoundMarker):
                self._call = self._rules.begin(step)
                self._end_call()
            else:
                self._tail = step

    def fill_mask(self, words: np.ndarray) -> None:
        if self._is_over:
            words[:] = self._rules.table.end_mask
        elif self._call is not None:
            self._call.fill_mask(words)
        elif self._tail is None:
            words[:] = self._rules.table.everything
        else:
            words[:] = self._rules.mask(self._tail, is_behind_call=self._is_behind_call)

    def _end_call(self) -> None:
        if self._call is not None and self._call.is_stopped:
            self._call, self._tail, self._is_behind_call = None, b"", True
            self._is_over = self._rules.is_single
