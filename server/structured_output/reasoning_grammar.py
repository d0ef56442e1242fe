"""Grammars of outputs that reason first: the reasoning has a token budget, and another grammar holds only behind it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from enum import Enum, auto
from typing import NamedTuple, Self

import numpy as np

from sampling.host.grammar import GrammarError
from server.structured_output.marker_scanner import SPACE, FoundMarker, MarkerScanner
from server.structured_output.output_grammar import AdvancedGrammar, OutputGrammar
from server.structured_output.token_table import TokenTable


class EndMarker(NamedTuple):
    """The marker that is forced when the reasoning budget is spent."""

    marker: bytes
    token_ids: Sequence[int]  # that write the marker


class ReasoningMarkers:
    """The markers of reasoning in the outputs of one model, made once, by a search of the vocabulary.

    Any of `begins` begins it and any of `ends` ends it; without `closing` no budget can be enforced.
    """

    def __init__(
        self, table: TokenTable, begins: Sequence[bytes], ends: Sequence[bytes], closing: EndMarker | None
    ) -> None:
        self.table = table
        self.ends = MarkerScanner(table, ends)
        self.begins = tuple(begins)
        self.closing = closing
        self._parts_of_begins = table.ids_within(begins)
        self._begin_masks = {
            begin[:size]: self._beginning(begin[:size]) for begin in begins for size in range(len(begin))
        }

    def begin_mask(self, head: bytes) -> np.ndarray:
        """The tokens by which a text that begins with `head` may become a reasoning's beginning."""
        return self._begin_masks[head]

    def _beginning(self, head: bytes) -> np.ndarray:
        wanted = tuple(begin[len(head) :] for begin in self.begins if begin.startswith(head))
        fitting = (at for at in self._parts_of_begins if any(text.startswith(self.table[at]) for text in wanted))
        return self.table.mask_of(fitting)


class ReasoningGrammar:
    """The grammar of outputs of one prompt.

    Args:
        is_open: whether the output begins within the reasoning.
        budget: the most tokens of the reasoning between its markers; None: any number.
        behind: the grammar of what follows the reasoning; None: it may be anything.
        is_form: whether the whole output but its reasoning must match `behind`. Then no token ends the output within
            its reasoning, and the token that ends the reasoning may go on with white space alone.
    """

    def __init__(
        self, scan: ReasoningMarkers, *, is_open: bool, budget: int | None, behind: OutputGrammar | None, is_form: bool
    ) -> None:
        self.scan, self.is_open, self.budget, self.behind, self.is_form = scan, is_open, budget, behind, is_form
        self._taken: dict[bytes, bool] = {}  # by what a token has behind the marker
        self._masks = {tail: self._mask_within(tail) for tail in scan.ends.tails}

    @property
    def ends_output(self) -> bool:
        return self.behind is not None and self.behind.ends_output

    def matcher(self) -> ReasoningMatcher:
        return ReasoningMatcher(self)

    def after(self, token_ids: Sequence[int]) -> OutputGrammar:
        return AdvancedGrammar.read(self.matcher(), token_ids, self.scan.table.end_token_ids)

    def mask_within(self, tail: bytes) -> np.ndarray:
        """The tokens that may come within the reasoning behind `tail`."""
        return self._masks[tail]

    def _mask_within(self, tail: bytes) -> np.ndarray:
        table = self.scan.table
        if self.behind is None:
            return table.everything
        refused = set()
        for token_id, (_, rest) in self.scan.ends.crossings(tail):
            if rest not in self._taken:
                self._taken[rest] = self._takes(rest)
            if not self._taken[rest]:
                refused.add(token_id)
        if self.is_form:
            refused |= table.end_token_ids
        return table.everything & ~table.mask_of(refused) if refused else table.everything

    def _takes(self, rest: bytes) -> bool:
        rest = rest.lstrip(SPACE)
        if not rest or self.behind is None:
            return True
        spelled = None if self.is_form else self.scan.table.spell(rest)
        if spelled is None:
            return False
        matcher = self.behind.matcher()
        try:
            for token_id in spelled:
                matcher.accept(token_id)
        except GrammarError:
            return False
        return True


class _Phase(Enum):
    BEFORE = auto()  # it is not known yet whether the answer reasons
    WITHIN = auto()
    BEHIND = auto()


class ReasoningMatcher:
    """The `sampling.host.grammar.TokenMatcher` of one output that may reason before what `behind` allows.

    White space next to the markers belongs to neither side, as in the output parser.
    """

    def __init__(self, rules: ReasoningGrammar) -> None:
        self._rules = rules
        self._table = rules.scan.table
        self._inner = None if rules.behind is None else rules.behind.matcher()
        self._phase = _Phase.BEFORE
        self._tail = b""  # before: what has come of the marker; within: what may become the closing one
        self._num_tokens = 0  # of the reasoning
        self._forced: Sequence[int] = ()  # tokens that must come next, as the budget is spent
        if rules.is_open:
            self._begin_reasoning(b"")

    @property
    def ends_output(self) -> bool:
        return self._rules.ends_output

    def copy(self) -> Self:
        other = copy(self)
        other._inner = None if self._inner is None else self._inner.copy()
        return other

    def accept(self, token_id: int) -> None:
        match self._phase:
            case _Phase.BEFORE:
                self._accept_before(token_id)
            case _Phase.WITHIN:
                self._accept_within(token_id)
            case _Phase.BEHIND if self._inner is not None:
                self._inner.accept(token_id)

    def fill_mask(self, words: np.ndarray) -> None:
        match self._phase:
            case _Phase.WITHIN if self._forced:
                words[:] = self._table.mask_of(self._forced[:1])
            case _Phase.WITHIN:
                words[:] = self._rules.mask_within(self._tail)
            case _Phase.BEFORE if self._rules.is_form:
                if self._inner is None:  # the text can only be the marker
                    words[:] = 0
                else:
                    self._inner.fill_mask(words)
                words |= self._rules.scan.begin_mask(self._tail)
            case _ if self._inner is not None:
                self._inner.fill_mask(words)
            case _:
                words[:] = self._table.everything

    def _accept_before(self, token_id: int) -> None:
        begins = self._rules.scan.begins
        text = (self._tail + self._table[token_id]).lstrip(SPACE)
        begin = next((one for one in begins if text.startswith(one)), None)
        if begin is not None:
            self._begin_reasoning(text[len(begin) :])
            return
        may_begin = any(one.startswith(text) for one in begins)
        if self._inner is not None:
            try:
                self._inner.accept(token_id)
            except GrammarError:
                if not may_begin:
                    raise
                self._inner = None
        elif self._rules.behind is not None and not may_begin:
            raise GrammarError(f"token {token_id} neither begins the reasoning nor follows the grammar")
        if may_begin:
            self._tail = text
        else:
            self._phase, self._tail = _Phase.BEHIND, b""

    def _begin_reasoning(self, rest: bytes) -> None:
        self._phase, self._tail, self._inner = _Phase.WITHIN, b"", None
        self._read(rest)

    def _accept_within(self, token_id: int) -> None:
        self._num_tokens += 1
        if self._forced and token_id == self._forced[0]:
            self._forced = self._forced[1:]
        else:  # an answer so far may have a longer reasoning than is allowed now
            self._forced = ()
        self._read(self._table[token_id])

    def _read(self, data: bytes) -> None:
        step = self._rules.scan.ends.step(self._tail, data)
        if isinstance(step, FoundMarker):
            self._end_reasoning(step.rest.lstrip(SPACE))
            return
        self._tail = step or b""
        budget = self._rules.budget
        if budget is not None and self._num_tokens >= budget and not self._forced:
            self._forced = self._rest_of_marker()

    def _rest_of_marker(self) -> Sequence[int]:
        """The tokens that end the reasoning; the output may have begun to write the marker by itself."""
        closing = self._rules.scan.closing
        if closing is None:
            return ()
        if self._tail:
            marker = next(one for one in self._rules.scan.ends.markers if one.startswith(self._tail))
            spelled = self._table.spell(marker[len(self._tail) :])
            if spelled is not None:
                return spelled
        return closing.token_ids

    def _end_reasoning(self, rest: bytes) -> None:
        self._phase, self._tail, self._forced = _Phase.BEHIND, b"", ()
        behind = self._rules.behind
        if behind is None:
            return
        self._inner = behind.matcher()
        if not rest:
            return
        spelled = self._table.spell(rest)
        if spelled is None:
            raise GrammarError("the token that ends the reasoning goes on with what the grammar does not allow")
        for token_id in spelled:
            self._inner.accept(token_id)
