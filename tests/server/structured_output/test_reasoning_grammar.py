"""Reasoning ends by its budget, and a grammar begins behind it, wherever tokens cut the markers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling.host.grammar import GrammarError, TokenMatcher
from server.protocol.structured_outputs import Grammar, GrammarKind
from server.structured_output.compiled_grammar import CompiledGrammar
from server.structured_output.grammar_vocabulary import GrammarVocabulary
from server.structured_output.reasoning_grammar import EndMarker, ReasoningGrammar, ReasoningMarkers
from tests.fakes.grammar_walk import allowed_tokens
from tests.fakes.pieces import END, TABLE, TEXTS, Pieces, bytes_of, splits, text_of

ALL = list(range(Pieces.vocab_size))
NATURAL = [TEXTS.index(b"</"), TEXTS.index(b"think"), ord(">")]
SCAN = ReasoningMarkers(TABLE, [b"<think>"], [b"</think>"], EndMarker(b"</think>", NATURAL))
FORM = CompiledGrammar.compile(
    Grammar(GrammarKind.CHOICE, '["{Yes}","<No>"]'), GrammarVocabulary(Pieces(), Pieces.vocab_size)
)


def rules(budget: int | None = None, *, is_open: bool = True, form: CompiledGrammar | None = None) -> ReasoningGrammar:
    return ReasoningGrammar(SCAN, is_open=is_open, budget=budget, behind=form, is_form=form is not None)


def allowed(matcher: TokenMatcher) -> list[int]:
    return allowed_tokens(matcher, Pieces.vocab_size).tolist()


def write(matcher: TokenMatcher, token_ids: Sequence[int]) -> list[int]:
    """What comes of an answer that would be these tokens; where others must come, they push those aside."""
    written: list[int] = []
    wanted = list(token_ids)
    while wanted:
        may = allowed(matcher)
        token_id = wanted.pop(0) if wanted[0] in may else may[0]
        if token_id == END:
            break
        matcher.accept(token_id)
        written.append(token_id)
    return written


@pytest.mark.parametrize("budget", [0, 1, 3, 9])
@pytest.mark.parametrize("is_open", [False, True])
def test_the_marker_comes_when_the_budget_is_spent(budget: int, is_open: bool) -> None:
    begin = [] if is_open else [TEXTS.index(b"<think>")]
    written = write(rules(budget, is_open=is_open).matcher(), [*begin, *bytes_of("abcdefghij and on")])
    assert (
        text_of(written)
        == "<think>" * (not is_open) + "abcdefghij"[:budget] + "</think>" + "abcdefghij and on"[budget:]
    )
    assert written[len(begin) + budget :][:3] == NATURAL


@pytest.mark.parametrize("budget", [None, 9, 10**30])
def test_a_reasoning_that_ends_in_time_is_as_it_was(budget: int | None) -> None:
    token_ids = bytes_of("because.</think>\n\nYes")
    matcher = rules(budget).matcher()
    for token_id in token_ids[:8]:
        assert allowed(matcher) == ALL
        matcher.accept(token_id)
    matcher = rules(budget).matcher()
    assert write(matcher, token_ids) == token_ids
    assert allowed(matcher) == ALL


@pytest.mark.parametrize("text", ["Yes. <think>no", "<thin ice", " \n  <tool", "<<think>"])
def test_an_answer_without_reasoning_is_free(text: str) -> None:
    matcher = rules(0, is_open=False).matcher()
    for token_id in bytes_of(text):
        assert allowed(matcher) == ALL
        matcher.accept(token_id)
    assert allowed(matcher) == ALL
    assert not matcher.ends_output


def test_what_has_come_of_the_marker_is_completed() -> None:
    written = write(rules(4).matcher(), [*bytes_of("ab"), *bytes_of("</t"), *bytes_of("Yes")])
    assert text_of(written) == "ab</think>Yes"


@settings(max_examples=25)
@given(seed=st.integers(0, 2**31 - 1), text=st.sampled_from(["", "a <b> ", "</thi", "<think>é日"]))
def test_a_form_begins_behind_the_reasoning(seed: int, text: str) -> None:
    """A token may end the marker and go on with white space, which belongs to neither side."""
    matcher = rules(form=FORM).matcher()
    assert matcher.ends_output
    written: list[int] = []
    for token_id in splits(f"{text}</think>", seed):
        may = allowed(matcher)
        assert END not in may
        assert token_id in may
        assert not any(
            b"</think>" in (data := b"".join(TEXTS[one] for one in [*written, other]))
            and data.split(b"</think>", 1)[1].strip()
            for other in may
        )
        matcher.accept(token_id)
        written.append(token_id)
    assert text_of(written) == f"{text}</think>"
    assert {TEXTS[token_id][:1] for token_id in allowed(matcher)} == {b"{", b"<"}
    for token_id in bytes_of("{Yes}"):
        matcher.accept(token_id)
    assert allowed(matcher) == [END]


def test_white_space_behind_the_marker_is_passed_over() -> None:
    matcher = rules(form=FORM).matcher()
    for piece in (b"</", b"think", b">\n\n"):
        matcher.accept(TEXTS.index(piece))
    for token_id in bytes_of("<No>"):
        matcher.accept(token_id)
    with pytest.raises(GrammarError):
        matcher.accept(ord("x"))


def test_a_form_may_come_without_reasoning() -> None:
    """Either the marker comes first or the form, and their common beginning leaves both open."""
    for text in ("{Yes}", "<No>"):
        matcher = rules(0, is_open=False, form=FORM).matcher()
        for token_id in bytes_of(text):
            assert token_id in allowed(matcher)
            matcher.accept(token_id)
        assert allowed(matcher) == [END]
    matcher = rules(0, is_open=False, form=FORM).matcher()
    assert TEXTS.index(b"<think>") in allowed(matcher)
    matcher.accept(ord("<"))
    assert allowed(matcher) == sorted([ord("t"), ord("N"), TEXTS.index(b"think")])
    matcher.accept(ord("t"))
    assert allowed(matcher) == [ord("h")]
    assert text_of(write(matcher, bytes_of("hink>{Yes}"))) == "hink></think>{Yes}"


@settings(max_examples=25)
@given(data=st.data(), budget=st.sampled_from([None, 0, 1, 4, 30]), is_open=st.booleans())
def test_an_answer_goes_on_where_it_was_cut(data: Any, budget: int | None, is_open: bool) -> None:
    form = data.draw(st.sampled_from([None, FORM]))
    made = rules(budget, is_open=is_open, form=form)
    text = f"{'' if is_open else '<think>'}a < b</thi \n</think>{{Yes}}"
    whole = write(made.matcher(), splits(text, data.draw(st.integers(0, 2**31 - 1))))
    cut = data.draw(st.integers(0, len(whole)))
    behind = made.after(whole[:cut])
    one, other, alone = behind.matcher(), behind.matcher(), made.matcher()
    for token_id in whole[:cut]:
        alone.accept(token_id)
    for token_id in whole[cut:]:
        assert allowed(one) == allowed(alone)
        one.accept(token_id)
        alone.accept(token_id)
    for token_id in whole[cut:]:  # what the first has read is nothing to the second
        other.accept(token_id)
    assert allowed(one) == allowed(other) == allowed(alone)


def test_a_longer_reasoning_so_far_is_ended_at_once() -> None:
    matcher = rules(2).after(bytes_of("so many tokens")).matcher()
    assert text_of(write(matcher, bytes_of("Yes"))) == "</think>Yes"


def test_what_is_no_such_answer_so_far_is_refused() -> None:
    with pytest.raises(GrammarError):
        rules(form=FORM).after(bytes_of("why</think>Maybe"))
    with pytest.raises(GrammarError, match="ends an answer"):
        rules(form=FORM).after([ord("w"), END])
