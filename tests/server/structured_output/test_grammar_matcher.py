from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, count

import numpy as np
import pytest

from sampling.host.grammar import GrammarError
from server.protocol.structured_outputs import Grammar, GrammarKind
from server.structured_output import grammar_matcher
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_matcher import GrammarMatcher, first_reason
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from tests.fakes.grammar_walk import MergedBytes, allowed_tokens

END, OTHER_END, CONTROL = 257, 259, 256


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary(MergedBytes(), MergedBytes.vocab_size)


@pytest.fixture
def compiled(vocabulary: GrammarVocabulary) -> CompiledGrammar:
    return CompiledGrammar.compile(Grammar(GrammarKind.REGEX, "ab?"), vocabulary)


def allowed(matcher: GrammarMatcher) -> list[int]:
    return allowed_tokens(matcher, MergedBytes.vocab_size).tolist()


def test_a_token_that_is_not_allowed_is_an_error(compiled: CompiledGrammar) -> None:
    matcher = compiled.matcher()
    with pytest.raises(GrammarError, match="does not allow token 98 here"):
        matcher.accept(ord("b"))
    with pytest.raises(GrammarError, match="cannot go on"):
        matcher.fill_mask(np.zeros(10, np.uint32))
    with pytest.raises(GrammarError):
        matcher.accept(ord("a"))


@pytest.mark.parametrize("token_id", [CONTROL, END, 5_000_000])
def test_control_tokens_do_not_match_text(compiled: CompiledGrammar, token_id: int) -> None:
    with pytest.raises(GrammarError, match=f"token {token_id}"):
        compiled.matcher().accept(token_id)


@pytest.mark.parametrize("text", ["a", "ab"])
def test_end_tokens_are_accepted_at_the_end_again_and_again(compiled: CompiledGrammar, text: str) -> None:
    matcher = compiled.matcher()
    for byte in text.encode():
        matcher.accept(byte)
    for end in (OTHER_END, END, END):
        matcher.accept(end)
        assert allowed(matcher) == [END, OTHER_END]
    with pytest.raises(GrammarError):
        matcher.accept(ord("b"))


def test_matchers_of_one_grammar_are_independent(compiled: CompiledGrammar) -> None:
    one, other = compiled.matcher(), compiled.matcher()
    one.accept(ord("a"))
    with pytest.raises(GrammarError):
        one.accept(ord("a"))
    assert allowed(other) == [ord("a"), MergedBytes.token_bytes.index(b"ab")]
    assert allowed(compiled.matcher()) == allowed(other)


def test_a_state_too_complex_for_the_limits_is_an_error(vocabulary: GrammarVocabulary) -> None:
    source = "(.{0,300}x.{0,300}y){30}"
    matcher = CompiledGrammar.compile(Grammar(GrammarKind.REGEX, source), vocabulary).matcher()

    def write_on() -> None:
        for step in range(6000):
            assert b"xay"[step % 3] in allowed(matcher)
            matcher.accept(b"xay"[step % 3])

    with pytest.raises(GrammarError, match="too many"):
        write_on()


@pytest.fixture
def letters(vocabulary: GrammarVocabulary) -> GrammarMatcher:
    return CompiledGrammar.compile(Grammar(GrammarKind.REGEX, "a*"), vocabulary).matcher()


def write(matcher: GrammarMatcher, num_tokens: int) -> None:
    for _ in range(num_tokens):
        matcher.fill_mask(np.zeros(10, np.uint32))
        matcher.accept(ord("a"))


def run_clock(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> None:
    """Installs a clock on which `seconds(n)` pass between its reading n - 1 and its reading n."""
    times = accumulate(map(seconds, count()))
    monkeypatch.setattr(grammar_matcher, "thread_time", lambda: next(times))


def test_an_answer_that_takes_too_long_a_token_is_given_up(
    letters: GrammarMatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_clock(monkeypatch, lambda look: 0.035)  # mask and token, 70 ms together
    write(letters, 10)
    with pytest.raises(GrammarError, match="more than 20 ms a token"):
        letters.fill_mask(np.zeros(10, np.uint32))


def test_an_answer_that_takes_long_only_at_times_goes_on(
    letters: GrammarMatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_clock(monkeypatch, lambda look: 0.3 if look % 100 == 1 else 0.001)
    write(letters, 500)


@pytest.mark.parametrize("row", [np.zeros(10, np.int32), np.zeros(20, np.uint32)[::2]])
def test_only_a_contiguous_row_of_uint32_is_accepted(compiled: CompiledGrammar, row: np.ndarray) -> None:
    with pytest.raises(ValueError, match="uint32"):
        compiled.matcher().fill_mask(row)


def test_a_mask_row_of_another_length_is_refused(compiled: CompiledGrammar) -> None:
    with pytest.raises(ValueError, match="size"):
        compiled.matcher().fill_mask(np.zeros(3, np.uint32))


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ("at 1(8): failed to compile JSON schema: Unknown format: x\n   1 | start: …", "Unknown format: x"),
        ('at 1(8): invalid regex "a$b" (in regex): lookarounds\n   1 | start', "lookarounds"),
        ("regex parse error:\n    [\n    ^\nerror: unclosed character class\n   1 | x", "unclosed character class"),
        ('at 3(8): unknown name: "x"\n   3 | start: x', 'at 3(8): unknown name: "x"'),
        ("panic: index out of bounds\n<backtrace>\n 1: /home/somebody/file.rs", "it is not supported"),
        ("", "it is not supported"),
    ],
)
def test_the_first_reason(report: str, reason: str) -> None:
    assert first_reason(report) == reason


def test_a_long_reason_keeps_its_end() -> None:
    reason = first_reason("at 1(8): " + "x" * 10_000 + " is wrong")
    assert len(reason) < 300
    assert reason.startswith("at 1(8): xxx")
    assert reason.endswith("is wrong")


class PanicException(BaseException):
    """What a panic in Rust is to Python."""


class Panicking:
    """A matcher of llguidance that has a defect."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def deep_copy(self) -> Panicking:
        return self

    def consume_token(self, token_id: int) -> bool:
        raise self._error

    def unsafe_compute_mask_ptr(self, pointer: int, num_bytes: int) -> None:
        raise self._error


def test_a_panic_ends_the_one_answer() -> None:
    matcher = GrammarMatcher(Panicking(PanicException("index out of bounds")), frozenset({END}))  # type: ignore[arg-type]
    with pytest.raises(GrammarError, match="llguidance has failed: index out of bounds"):
        matcher.accept(1)
    with pytest.raises(GrammarError, match="llguidance has failed: index out of bounds"):
        matcher.fill_mask(np.zeros(10, np.uint32))


def test_what_is_no_panic_is_raised_as_it_is() -> None:
    matcher = GrammarMatcher(Panicking(KeyboardInterrupt()), frozenset({END}))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        matcher.accept(1)
