"""DRY: tokens that would continue a repetition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling.host.params import SamplingParams
from tests.sampling.agreement import assert_feature_alone, assert_follows
from tests.sampling.batches import MAX_MODEL_LEN, apply_alone, batch_of, random_logits
from tests.sampling.reference import Request


def penalties(request: Request, vocab_size: int = 7) -> list[float]:
    """What each token's logit loses."""
    lost = -apply_alone("dry", batch_of([request], np.zeros((1, vocab_size), np.float32), num_rows=8))[0]
    return (lost + 0.0).tolist()


def dry(output: tuple[int, ...], prompt: tuple[int, ...] = (), **params) -> Request:
    """A request with a penalty that is easily read: 2 ** (length - allowed length)."""
    return Request(SamplingParams(**{"dry_multiplier": 1.0, "dry_base": 2.0, **params}), prompt, output)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (dry((1, 2, 3, 1, 2)), {3: 1}),  # 1 2 again: 3 came after it
        (dry((3, 1, 2), prompt=(1, 2)), {3: 1}),  # the prompt counts
        (dry((1, 2, 3, 4, 1, 2)), {3: 1}),
        (dry((0, 1, 2, 3, 0, 1, 2)), {3: 2}),
        (dry((1, 2, 3, 1, 2), dry_allowed_length=3), {}),
        (dry((1, 2, 3, 1, 2), dry_allowed_length=1), {3: 2}),
        (dry((2, 3, 2), dry_allowed_length=1), {3: 1}),
        (dry((1, 2, 3, 1, 2, 4, 1, 2)), {3: 1, 4: 1}),  # two continuations
        (dry((0, 1, 2, 3, 5, 1, 2, 3, 0, 1, 2)), {3: 2}),  # of several repetitions the longest
        (dry((5, 5, 5, 5)), {5: 2}),  # repetitions overlap: three are there, and a fourth
        (dry((1, 2, 1, 2, 1, 2)), {1: 4}),
        (dry(()), {}),
        (dry((1,)), {}),
        (dry((1, 2, 3, 1, 2), dry_penalty_last_n=0), {}),
        (dry((1, 2, 3, 1, 2), dry_penalty_last_n=1), {}),
        (dry((1, 2, 3, 1, 2), dry_penalty_last_n=4), {}),  # the first 1 is out of sight
        (dry((1, 2, 3, 1, 2), dry_penalty_last_n=4, dry_allowed_length=1), {3: 1}),
        (dry((1, 2, 3, 1, 2), dry_penalty_last_n=5), {3: 1}),
        (dry((1, 2, 3, 1, 2), dry_penalty_last_n=1000), {3: 1}),
        (dry((1, 2, 3, 1, 2), dry_breaker_ids=(1,)), {}),  # only 2 is left to repeat
        (dry((1, 2, 3, 1, 2), dry_breaker_ids=(1,), dry_allowed_length=1), {3: 1}),
        (dry((1, 2, 3, 1, 2), dry_breaker_ids=(2,), dry_allowed_length=1), {}),
        (dry((1, 2, 3, 1, 2), dry_breaker_ids=(3,), dry_allowed_length=1), {}),  # breakers are never penalised
    ],
)  # fmt: skip
def test_by_hand(request_, expected):
    assert penalties(request_) == [expected.get(token, 0.0) for token in range(7)]


def test_a_repetition_of_fifty_tokens():
    repeated = tuple(range(50))
    request = dry((*repeated, 60, 50, *repeated), dry_base=1.5, dry_multiplier=0.8)
    lost = penalties(request, vocab_size=100)
    assert np.flatnonzero(lost).tolist() == [60]
    assert lost[60] == pytest.approx(0.8 * 1.5**48, rel=1e-5)


def test_a_penalty_beyond_all_floats_still_leaves_a_token():
    repeated = tuple(range(60))
    request = dry((*repeated, 60, *repeated), dry_base=10.0, dry_multiplier=100.0, dry_allowed_length=1)
    lost = penalties(request, vocab_size=100)
    assert np.isfinite(lost).all()
    assert lost[60] == np.float32(1e30)


@settings(max_examples=60)
@given(
    tokens=st.lists(st.integers(0, 3), max_size=MAX_MODEL_LEN - 1),
    prompt_share=st.floats(0, 1),
    allowed_length=st.integers(1, 4),
    last_n=st.one_of(st.just(-1), st.integers(0, 40)),
    breakers=st.sets(st.integers(0, 3), max_size=2),
)
def test_any_sequence_is_as_defined(tokens, prompt_share, allowed_length, last_n, breakers):
    params = SamplingParams(
        dry_multiplier=0.5, dry_base=1.2, dry_allowed_length=allowed_length, dry_penalty_last_n=last_n,
        dry_breaker_ids=tuple(breakers),
    )  # fmt: skip
    cut = int(prompt_share * len(tokens))
    request = Request(params, tuple(tokens[:cut]), tuple(tokens[cut:]))
    assert_feature_alone("dry", [request], np.zeros((1, 7), np.float32))


@pytest.mark.parametrize("vocab_size", [7, 600])
def test_rows_with_sequences_of_their_own(vocab_size):
    random = np.random.default_rng(4)
    requests = [
        dry(tuple(random.integers(0, 1 + index % 7, 10 * index).tolist()), dry_allowed_length=1 + index % 3)
        for index in range(12)
    ]
    assert_feature_alone("dry", requests, random_logits(5, len(requests), vocab_size))


def test_in_the_sampler(backend):
    random = np.random.default_rng(6)
    requests = [
        dry(
            tuple(random.integers(0, 5, random.integers(0, 120)).tolist()),
            temperature=index % 2 * 0.9, dry_multiplier=0.8, dry_base=1.1, dry_allowed_length=1 + index % 3,
            dry_penalty_last_n=[-1, 0, 1, 30][index % 4], dry_breaker_ids=((), (2,), (99,))[index % 3],
        )
        for index in range(60)
    ]  # fmt: skip
    assert_follows(backend, requests, random_logits(7, len(requests), 600, spread=0.5))


def test_where_all_else_is_banned_the_penalised_token_remains(backend):
    request = dry((1, 2, 3, 1, 2), dry_multiplier=100.0, allowed_token_ids=(3,))
    assert assert_follows(backend, [request], random_logits(8, 1, 600)).tolist() == [3]


@settings(max_examples=40, deadline=None)
@given(
    period=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    num_tokens=st.integers(34, MAX_MODEL_LEN - 1),
    changed=st.lists(st.integers(0, MAX_MODEL_LEN - 2), max_size=2),
    last_n=st.one_of(st.just(-1), st.integers(30, 120)),
    breakers=st.sets(st.integers(2, 5), max_size=2),
)
def test_long_repetitions_are_as_defined(period, num_tokens, changed, last_n, breakers):
    tokens = [period[index % len(period)] for index in range(num_tokens)]
    for place in changed:
        tokens[place % num_tokens] = 5
    params = SamplingParams(
        dry_multiplier=0.5, dry_base=1.02, dry_penalty_last_n=last_n, dry_breaker_ids=tuple(breakers)
    )
    short = Request(SamplingParams(dry_multiplier=0.5), (1, 2, 3), (1, 2))  # beside it: a row without any
    assert_feature_alone("dry", [Request(params, (), tuple(tokens)), short], np.zeros((2, 7), np.float32))
