"""Grammars in the engine loop, on the fake device: the mask of a step depends on the token before it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.interface.types import FinishReason
from sampling.host.grammar import GrammarError, num_words_of, pack_words
from sampling.host.rows import INT_COLUMNS
from tests.fakes.runner import EOS, VOCAB_SIZE, FakeRunner, expected_output, next_allowed, next_token
from tests.fakes.script import World

NUM_WORDS = num_words_of(VOCAB_SIZE)


class EveryThird:
    """Allows every third token, from another first one at each position, and after `length` tokens only the end."""

    ends_output = True

    def __init__(self, length: int, *, breaks_at: int | None = None) -> None:
        self.accepted: list[int] = []
        self._length = length
        self._breaks_at = breaks_at

    def allowed(self, position: int) -> list[int]:
        if position >= self._length:
            return [EOS]
        return [token for token in range(1, VOCAB_SIZE) if token % 3 == position % 3]

    def accept(self, token_id: int) -> None:
        if token_id not in self.allowed(len(self.accepted)):
            raise GrammarError(f"{token_id} is not allowed here")
        self.accepted.append(token_id)

    def fill_mask(self, words: np.ndarray) -> None:
        if len(self.accepted) == self._breaks_at:
            raise GrammarError("this is too hard")
        words[:] = pack_words(self.allowed(len(self.accepted)), NUM_WORDS)


def expected_third(prompt, seed, length, max_tokens):
    """What a request with that grammar gets when it runs alone."""
    tokens, matcher = list(prompt), EveryThird(length)
    for position in range(max_tokens):
        mask = pack_words(matcher.allowed(position), NUM_WORDS)
        tokens.append(next_allowed(next_token(tokens, seed), mask))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]


@pytest.mark.parametrize("overlap", [True, False])
def test_the_output_follows_the_grammar_and_ends_with_it(overlap):
    world = World(overlap=overlap)
    request = world.request("a", [1, 2, 3], max_tokens=20, matcher=EveryThird(6))
    outcome = world.run({0: [request]})["a"]
    assert outcome.token_ids == expected_third([1, 2, 3], 0, 6, 20)
    assert len(outcome.token_ids) == 7
    assert outcome.finish_reason is FinishReason.STOP


def test_the_end_of_a_grammar_ends_the_output_even_with_ignore_eos():
    world = World()
    request = world.request("a", [1, 2], max_tokens=20, ignore_eos=True, matcher=EveryThird(3))
    outcome = world.run({0: [request]})["a"]
    assert (len(outcome.token_ids), outcome.finish_reason) == (4, FinishReason.STOP)


def test_the_forward_pass_is_dispatched_before_the_token_for_the_mask_is_known(monkeypatch):
    """The order is dispatch N+1, result N, masks N+1; in any other order, the device would be idle."""
    order = []
    for name in ("dispatch", "result", "sample"):
        original = getattr(FakeRunner, name)

        def noted(runner, *arguments, original=original, name=name):
            order.append(name)
            return original(runner, *arguments)

        monkeypatch.setattr(FakeRunner, name, noted)
    world = World()
    world.run({0: [world.request("a", [1, 2], max_tokens=4, ignore_eos=True, matcher=EveryThird(9))]})
    assert order[:2] == ["dispatch", "sample"]
    assert order[2:8] == ["dispatch", "result", "sample"] * 2


def test_a_matcher_never_sees_a_dropped_token():
    """The step behind the end is computed before the end is known; its token is dropped."""
    world, matcher = World(), EveryThird(4)
    world.run({0: [world.request("a", [1, 2], max_tokens=20, matcher=matcher)]})
    assert len(matcher.accepted) == 4


@pytest.mark.parametrize("overlap", [True, False])
def test_a_grammar_that_cannot_go_on_ends_its_request_alone(overlap):
    world = World(overlap=overlap)
    broken = world.request("a", [1, 2], max_tokens=20, matcher=EveryThird(9, breaks_at=3))
    other = world.request("b", [3, 4], arrival=1, max_tokens=12, ignore_eos=True)
    outcomes = world.run({0: [broken, other]})
    assert outcomes["a"].finish_reason is FinishReason.ERROR
    assert outcomes["a"].error == "this is too hard"
    assert outcomes["a"].token_ids == expected_third([1, 2], 0, 9, 3)
    assert outcomes["b"].token_ids == expected_output([3, 4], 0, 14, ignore_eos=True)


def test_a_token_that_the_grammar_refuses_ends_the_request(monkeypatch):
    world, matcher = World(), EveryThird(9)
    monkeypatch.setattr(matcher, "fill_mask", lambda words: words.fill(0xFFFFFFFF))
    outcome = world.run({0: [world.request("a", [1, 2], max_tokens=20, ignore_eos=True, matcher=matcher)]})["a"]
    assert outcome.finish_reason is FinishReason.ERROR
    assert outcome.error is not None
    assert outcome.error.endswith("is not allowed here")


def test_a_mask_that_allows_nothing_is_reported(monkeypatch):
    world, matcher = World(), EveryThird(9)
    monkeypatch.setattr(matcher, "fill_mask", lambda words: None)
    outcome = world.run({0: [world.request("a", [1, 2], max_tokens=20, matcher=matcher)]})["a"]
    assert outcome.finish_reason is FinishReason.ERROR
    assert outcome.error == "the request's parameters leave no token that could come next"


def test_min_tokens_does_not_hold_at_the_end_of_the_grammar():
    """The fake device ignores min_tokens, so the test looks at the row that it gets."""
    seen = []
    world = World()
    sample = world.runner.sample

    def watched(pending, masks):
        seen.append(int(pending.inputs.sampling.ints[0, INT_COLUMNS["min_tokens"]]))
        sample(pending, masks)

    world.runner.sample = watched
    world.run({0: [world.request("a", [1, 2], max_tokens=20, min_tokens=10, matcher=EveryThird(2))]})
    assert seen[:3] == [10, 10, 0]


requests = st.lists(
    st.tuples(
        st.integers(0, 12),  # turn
        st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=1, max_size=30),
        st.integers(1, 20),  # max_tokens
        st.integers(0, 3),  # seed
        st.one_of(st.none(), st.integers(1, 12)),  # length of the grammar, if there is one
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=120)
@given(requests, st.booleans(), st.integers(12, 40), st.integers(1, 3))
def test_every_output_is_as_if_alone(script, overlap, num_pages, decode_chunk):
    """This holds with preemption, with any other requests, and in any order of arrival."""
    world = World(overlap=overlap, num_pages=num_pages, decode_chunk=decode_chunk)
    turns, expected = {}, {}
    for index, (turn, prompt, max_tokens, seed, length) in enumerate(script):
        max_tokens = min(max_tokens, world.max_model_len - len(prompt))
        if max_tokens < 1:
            continue
        name, is_drawn = str(index), seed > 0
        params = {"max_tokens": max_tokens, "seed": seed, "temperature": float(is_drawn)}
        matcher = None if length is None else EveryThird(length)
        turns.setdefault(turn, []).append(
            world.request(name, prompt, arrival=index, matcher=matcher, **params)
        )  # fmt: skip
        if length is None:
            expected[name] = expected_output(prompt, seed if is_drawn else 0, len(prompt) + max_tokens)
        else:
            expected[name] = expected_third(prompt, seed if is_drawn else 0, length, max_tokens)
    outcomes = world.run(turns)
    assert {name: outcome.token_ids for name, outcome in outcomes.items()} == expected
