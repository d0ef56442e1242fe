"""One output on its way through a compiled grammar: what llguidance knows, as the engine asks for it."""

from __future__ import annotations

import re
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np

from sampling.host.grammar import GrammarError
from server.text.failures import is_panic

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_REASON_CHARS = 240

# A grammar of three words that can read a text in very many ways takes longer with each token, some hundred
# milliseconds in the end, within all limits of llguidance. Every stream waits for the slowest grammar of a step.
TOKEN_SECONDS = 0.02  # of a processor's time, for each token; usual grammars were seen to take 5 ms at most
SPARE_SECONDS = 0.5  # beyond that, of one answer

# Schemas and regular expressions come to llguidance wrapped in a grammar of which the client knows nothing.
_WRAPPING = re.compile(
    r"^at \d+\(\d+\): (?:failed to compile JSON schema: |invalid regex .*? \(in regex\): )", re.DOTALL
)


class GrammarMatcher:
    """A `sampling.host.grammar.TokenMatcher` over llguidance's matcher.

    At the grammar's end it offers the model's end tokens and accepts any number of them. An answer
    that goes on taking more than TOKEN_SECONDS a token is given up.
    """

    __slots__ = ("_end_token_ids", "_excess", "_is_ended", "_own", "_start")

    def __init__(self, start: LLMatcher, end_token_ids: frozenset[int]) -> None:
        """Args:
        start: at the grammar's beginning; it is copied with the first use, for a thousand answers
            may be asked for at once and the largest grammars take 1 ms.
        """
        self._start = start
        self._own: LLMatcher | None = None
        self._end_token_ids = end_token_ids
        self._is_ended = False
        self._excess = 0.0  # seconds taken beyond TOKEN_SECONDS a token

    @property
    def _matcher(self) -> LLMatcher:
        if self._own is None:
            self._own = self._start.deep_copy()
        return self._own

    def accept(self, token_id: int) -> None:
        if self._is_ended and token_id in self._end_token_ids:
            return
        began = thread_time()
        try:
            is_allowed = self._matcher.consume_token(token_id)
        except BaseException as error:
            self._give_up(error)
            raise
        self._excess += thread_time() - began
        if not is_allowed:
            raise GrammarError(
                f"the grammar does not allow token {token_id} here: {first_reason(self._matcher.get_error())}"
            )
        self._is_ended = token_id in self._end_token_ids

    def fill_mask(self, words: np.ndarray) -> None:
        if words.dtype != np.uint32 or not words.flags.c_contiguous:
            raise ValueError(f"the row of words is {words.dtype}, strides {words.strides}; it must be whole uint32")
        began = thread_time()
        try:
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        except BaseException as error:
            self._give_up(error)
            raise
        self._excess = max(0.0, self._excess + thread_time() - began - TOKEN_SECONDS)
        # Where it has failed, now or before, llguidance offers the end tokens and says nothing.
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot go on: {first_reason(self._matcher.get_error())}")
        if self._excess > SPARE_SECONDS:
            raise GrammarError(
                f"the grammar cannot go on: it takes more than {TOKEN_SECONDS * 1e3:g} ms a token, "
                "as one does that can read a text in very many ways"
            )

    def _give_up(self, error: BaseException) -> None:
        """Raises a GrammarError in the place of a panic, which would end the thread of the engine and all answers."""
        if is_panic(error):
            raise GrammarError(
                f"the grammar cannot go on: llguidance has failed: {first_reason(str(error))}"
            ) from error


def first_reason(report: str) -> str:
    """One line of llguidance's report of an error: the reason, without the pictures and traces around it."""
    if report.startswith("panic"):
        return "it is not supported"
    lines = [line.strip() for line in _WRAPPING.sub("", report).splitlines() if line.strip()]
    # Regular expressions are drawn first, and explained in the last line.
    explained = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    reason = (explained or lines or ["it is not supported"])[0]
    if len(reason) <= MAX_REASON_CHARS:
        return reason
    return f"{reason[: MAX_REASON_CHARS // 2]} … {reason[-MAX_REASON_CHARS // 2 :]}"
