"""The matcher of one output: llguidance's matcher for the engine, within a time limit."""

from __future__ import annotations

import re
from time import thread_time
from typing import TYPE_CHECKING, Protocol

import numpy as np

from sampling.host.grammar import GrammarError
from server.structured_output.schemas.digit_limit import MAX_DIGITS, DigitLimit
from server.text.tokenization.native_errors import is_panic

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_REASON_CHARS = 240

# A very ambiguous grammar takes longer with each token, within all limits of llguidance, and every stream
# waits for the slowest grammar of a step. So the processor time of an answer is limited.
TOKEN_SECONDS = 0.02  # for each token
SPARE_SECONDS = 0.5  # more than that, for a whole answer

# Messages about schemas and regular expressions begin with this mention of a grammar that the client did not write.
_WRAPPING = re.compile(
    r"^at \d+\(\d+\): (?:failed to compile JSON schema: |invalid regex .*? \(in regex\): )", re.DOTALL
)


class HasInitialState(Protocol):
    """What makes matchers of llguidance in the initial state of one grammar."""

    def deep_copy(self) -> LLMatcher: ...


class GrammarMatcher:
    """The `sampling.host.grammar.TokenMatcher` of a compiled grammar; it uses llguidance's matcher.

    At the end of the grammar it allows the end tokens of the model and accepts any number of them. It raises
    GrammarError for an output that keeps taking more than TOKEN_SECONDS a token.

    Args:
        start: makes llguidance's matcher at the first use and not here, because a request may ask for many outputs
            at once. It is kept as long as this object, after that matcher.
        digits: the limit of the numbers; None where any are allowed.
    """

    # Slots are cleared in the order of their names.
    __slots__ = ("_digits", "_end_token_ids", "_excess", "_is_ended", "_num_digits", "_own", "_start")

    def __init__(self, start: HasInitialState, end_token_ids: frozenset[int], digits: DigitLimit | None = None) -> None:
        self._start = start
        self._digits = digits
        self._num_digits = 0  # in a row, at the end of the output
        self._own: LLMatcher | None = None
        self._end_token_ids = end_token_ids
        self._is_ended = False
        self._excess = 0.0  # seconds that were used beyond TOKEN_SECONDS a token

    @property
    def ends_output(self) -> bool:
        return True

    @property
    def is_stopped(self) -> bool:
        """Whether nothing but an end token can follow."""
        return self._is_ended or (self._own is not None and self._own.is_stopped())

    @property
    def is_accepting(self) -> bool:
        """Whether the output so far is whole by the grammar, even if more can follow."""
        return self._is_ended or self._matcher.is_accepting()

    def copy(self) -> GrammarMatcher:
        other = GrammarMatcher(self._start, self._end_token_ids, self._digits)
        other._num_digits = self._num_digits
        other._own = None if self._own is None else self._own.deep_copy()
        other._is_ended, other._excess = self._is_ended, self._excess
        return other

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
        if self._digits is not None:
            self._num_digits = self._digits.count(self._num_digits, token_id)

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
        # After a failure, llguidance allows the end tokens and raises nothing, so it must be asked.
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot go on: {first_reason(self._matcher.get_error())}")
        if self._excess > SPARE_SECONDS:
            raise GrammarError(
                f"the grammar cannot go on: it takes more than {TOKEN_SECONDS * 1e3:g} ms a token, "
                "as one does that can read a text in very many ways"
            )
        if self._num_digits >= MAX_DIGITS and self._digits is not None:
            self._digits.apply(words)

    def _give_up(self, error: BaseException) -> None:
        """Raises a GrammarError instead of a panic, which would end the engine thread and all outputs."""
        if is_panic(error):
            raise GrammarError(
                f"the grammar cannot go on: llguidance has failed: {first_reason(str(error))}"
            ) from error


def first_reason(report: str) -> str:
    """The reason in llguidance's report of an error, as one line without drawings and traces."""
    if report.startswith("panic"):
        return "it is not supported"
    lines = [line.strip() for line in _WRAPPING.sub("", report).splitlines() if line.strip()]
    # A report about a regular expression first draws it and explains the error in the last line.
    explained = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    reason = (explained or lines or ["it is not supported"])[0]
    if len(reason) <= MAX_REASON_CHARS:
        return reason
    return f"{reason[: MAX_REASON_CHARS // 2]} … {reason[-MAX_REASON_CHARS // 2 :]}"
