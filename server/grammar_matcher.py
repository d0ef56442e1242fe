"""One output on its way through a compiled grammar: what llguidance knows, as the engine asks for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from sampling.grammar import GrammarError

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_REASON_CHARS = 240

# Schemas and regular expressions come to llguidance wrapped in a grammar of which the client knows nothing.
_WRAPPING = re.compile(
    r"^at \d+\(\d+\): (?:failed to compile JSON schema: |invalid regex .*? \(in regex\): )", re.DOTALL
)


class GrammarMatcher:
    """A `sampling.grammar.TokenMatcher` over llguidance's matcher, which it takes over.

    At the grammar's end it offers the model's end tokens and accepts any number of them.
    """

    __slots__ = ("_end_token_ids", "_is_ended", "_matcher")

    def __init__(self, matcher: LLMatcher, end_token_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._end_token_ids = end_token_ids
        self._is_ended = False

    def accept(self, token_id: int) -> None:
        if self._is_ended and token_id in self._end_token_ids:
            return
        if not self._matcher.consume_token(token_id):
            raise GrammarError(
                f"the grammar does not allow token {token_id} here: {first_reason(self._matcher.get_error())}"
            )
        self._is_ended = token_id in self._end_token_ids

    def fill_mask(self, words: np.ndarray) -> None:
        if words.dtype != np.uint32 or not words.flags.c_contiguous:
            raise ValueError(f"the row of words is {words.dtype}, strides {words.strides}; it must be whole uint32")
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        # Where it has failed, now or before, llguidance offers the end tokens and says nothing.
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot go on: {first_reason(self._matcher.get_error())}")


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
