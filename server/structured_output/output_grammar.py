"""The interface of grammars that outputs must follow, and the grammar of the rest of a partial output."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import thread_time
from typing import Protocol, Self

from sampling.host.grammar import GrammarError, TokenMatcher

MAX_PREFIX_SECONDS = 2.0  # of processor time, for an answer that goes on from its first tokens


class OutputMatcher(TokenMatcher, Protocol):
    """A matcher that can be copied in its present state."""

    def copy(self) -> Self: ...


class OutputGrammar(Protocol):
    """Makes one matcher for each output; any thread may call it."""

    @property
    def ends_output(self) -> bool:
        """As `TokenMatcher.ends_output`."""

    def matcher(self) -> OutputMatcher: ...

    def after(self, token_ids: Sequence[int]) -> OutputGrammar:
        """The grammar of what may follow `token_ids`; may take seconds; raises GrammarError for other tokens."""


class AdvancedGrammar:
    """The grammar of the rest of an output, whose first tokens `matcher` has read; it is only copied from now on."""

    def __init__(self, matcher: OutputMatcher) -> None:
        self._matcher = matcher

    @classmethod
    def read(cls, matcher: OutputMatcher, token_ids: Sequence[int], end_token_ids: Collection[int]) -> AdvancedGrammar:
        """Lets `matcher` read the first tokens of an output; raises GrammarError."""
        began = thread_time()
        for token_id in token_ids:
            if token_id in end_token_ids:
                raise GrammarError(f"token {token_id} among them ends an answer")
            matcher.accept(token_id)
            if thread_time() - began > MAX_PREFIX_SECONDS:
                raise GrammarError(f"to read them takes longer than {MAX_PREFIX_SECONDS:g} s, the limit")
        return cls(matcher)

    @property
    def ends_output(self) -> bool:
        return self._matcher.ends_output

    def matcher(self) -> OutputMatcher:
        return self._matcher.copy()

    def after(self, token_ids: Sequence[int]) -> OutputGrammar:
        return AdvancedGrammar.read(self._matcher.copy(), token_ids, ())
