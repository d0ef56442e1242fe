"""Parameters outside their limits are refused by name, value and limit."""

import math
import re

import pytest

from sampling.host.params import InvalidParameter, SamplingParams


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_tokens", 0, "max_tokens is 0; it must be at least 1"),
        ("temperature", -0.1, "temperature is -0.1; it must be from 0 to 2"),
        ("temperature", 2.5, "it must be from 0 to 2"),
        ("temperature", math.nan, "temperature is nan"),
        ("temperature", math.inf, "temperature is inf"),
        ("temperature", 10**400, "it must be from 0 to 2"),
        ("top_k", -2, "top_k is -2"),
        ("top_p", 0.0, "top_p is 0.0; it must be above 0 and at most 1"),
        ("top_p", 1.1, "it must be above 0 and at most 1"),
        ("top_p", math.nan, "top_p is nan"),
        ("min_p", -0.5, "min_p is -0.5; it must be from 0 to 1"),
        ("min_p", math.nan, "min_p is nan"),
        ("typical_p", 0.0, "typical_p is 0.0; it must be above 0 and at most 1"),
        ("typical_p", math.nan, "typical_p is nan"),
        ("top_n_sigma", -1.0, "top_n_sigma is -1.0; it must be from 0 to 1000"),
        ("presence_penalty", 2.1, "presence_penalty is 2.1; it must be from -2 to 2"),
        ("frequency_penalty", -2.1, "frequency_penalty is -2.1; it must be from -2 to 2"),
        ("repetition_penalty", 0.0, "repetition_penalty is 0.0; it must be above 0 and at most 10"),
        ("repetition_penalty", math.nan, "repetition_penalty is nan"),
        ("repetition_penalty", 10.5, "it must be above 0 and at most 10"),
        ("dry_multiplier", -0.1, "dry_multiplier is -0.1; it must be from 0 to 100"),
        ("dry_base", 0.9, "dry_base is 0.9; it must be from 1 to 10"),
        ("dry_allowed_length", 0, "dry_allowed_length is 0; it must be from 1 to 2147483647"),
        ("dry_penalty_last_n", -2, "dry_penalty_last_n is -2; it must be from -1 to 2147483647"),
        ("xtc_probability", 1.1, "xtc_probability is 1.1; it must be from 0 to 1"),
        ("xtc_threshold", -0.1, "xtc_threshold is -0.1; it must be from 0 to 1"),
        ("min_tokens", -1, "min_tokens is -1; it must be at least 0"),
        ("min_tokens", 17, "min_tokens is 17; it must be at most max_tokens, 16"),
        ("seed", 2**63, "it must fit in 64 bits"),
        ("seed", -(2**63) - 1, "it must fit in 64 bits"),
        ("stop_token_ids", tuple(range(65)), "stop_token_ids has 65 entries; at most 64 are allowed"),
        ("logprob_token_ids", tuple(range(65)), "logprob_token_ids has 65 entries; at most 64 are allowed"),
        ("logprob_token_ids", (1,), "logprob_token_ids is given and logprobs is not"),
        ("logit_bias", ((7, 1.0), (8, 1.0), (7, 2.0)), "logit_bias names a token twice; each may have one bias"),
        ("logit_bias", ((0, 0.0),) * 1025, "logit_bias has 1025 entries; at most 1024 are allowed"),
        ("logit_bias", ((7, 100.5),), "logit_bias of token 7 is 100.5; it must be from -100 to 100"),
        ("logit_bias", ((7, math.nan),), "logit_bias of token 7 is nan"),
        ("allowed_token_ids", (), "allowed_token_ids is empty; it must allow at least one token"),
        ("bad_words", ((1,),) * 257, "bad_words has 257 entries; at most 256 are allowed"),
        ("bad_words", ((1,), ()), "bad_words has an entry of 0 tokens; each must have from 1 to 16"),
        ("bad_words", ((1,) * 17,), "bad_words has an entry of 17 tokens; each must have from 1 to 16"),
        ("logprobs", 21, "logprobs is 21; it must be from 0 to 20"),
        ("logprobs", -1, "logprobs is -1; it must be from 0 to 20"),
        ("prompt_logprobs", 21, "prompt_logprobs is 21; it must be from 0 to 20"),
    ],
)
def test_a_value_outside_its_limits_is_named(name, value, words):
    with pytest.raises(InvalidParameter, match=re.escape(words)) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


def test_the_limits_themselves_are_allowed():
    params = SamplingParams(max_tokens=1, temperature=0.0, top_k=-1, top_p=1.0, min_p=1.0, seed=-(2**63))
    assert (params.max_tokens, params.temperature, params.top_k, params.min_p) == (1, 0.0, -1, 1.0)
    assert SamplingParams(temperature=2.0, min_p=0.0, seed=2**63 - 1).seed == 2**63 - 1
    assert SamplingParams(seed=-1).seed is None
    params = SamplingParams(
        typical_p=1.0, top_n_sigma=1000.0, presence_penalty=-2.0, frequency_penalty=2.0, repetition_penalty=10.0,
        dry_multiplier=100.0, dry_base=10.0, dry_allowed_length=2**31 - 1, dry_penalty_last_n=2**31 - 1,
        xtc_probability=1.0, xtc_threshold=1.0, min_tokens=16, stop_token_ids=tuple(range(64)),
        logit_bias=tuple((token, 100.0 * (-1) ** token) for token in range(1024)),
        bad_words=((1,) * 16,) * 256, logprobs=20, prompt_logprobs=0,
        logprob_token_ids=tuple(range(64)),
    )  # fmt: skip
    assert (params.logprobs, params.min_tokens, len(params.bad_words)) == (20, 16, 256)


def test_whole_numbers_of_any_size_are_no_trouble():
    assert SamplingParams(max_tokens=10**400, top_k=10**400).max_tokens == 10**400


@pytest.mark.parametrize("wrong", [-1, 100])
@pytest.mark.parametrize(
    ("field", "name", "wrap"),
    [
        ("stop_token_ids", "stop_token_ids", lambda token: (5, token)),
        ("logit_bias", "logit_bias", lambda token: ((5, 1.0), (token, 1.0))),
        ("allowed_token_ids", "allowed_token_ids", lambda token: (token, 5)),
        ("bad_words", "bad_words", lambda token: ((5,), (5, token, 5))),
        ("logprob_token_ids", "logprob_token_ids", lambda token: (token,)),
        ("dry_breaker_ids", "dry_sequence_breakers", lambda token: (token, 5)),
    ],
)
def test_token_ids_are_of_the_vocabulary(field, name, wrap, wrong):
    with pytest.raises(InvalidParameter, match=f"{name} has {wrong}; token ids must be from 0 to 99") as caught:
        SamplingParams(logprobs=0, **{field: wrap(wrong)}).check_token_ids(100)
    assert caught.value.param == name
    SamplingParams(logprobs=0, **{field: wrap(99)}).check_token_ids(100)
    SamplingParams(logprobs=0, **{field: wrap(0)}).check_token_ids(100)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 5.0), ("top_k", math.nan), ("top_k", True), ("seed", 1.5), ("seed", "1"), ("logprobs", 2.0),
        ("min_tokens", None), ("temperature", "0.5"), ("temperature", None), ("top_p", True), ("dry_base", 1j),
    ],
)  # fmt: skip
def test_a_wrong_type_is_refused_where_it_comes_in(name, value):
    """In the engine's thread it would end the process."""
    with pytest.raises(InvalidParameter, match=r"must be (an integer|a number)") as refusal:
        SamplingParams(**{name: value})
    assert refusal.value.param == name


@pytest.mark.parametrize(
    "params",
    [
        {"stop_token_ids": (1.0,)}, {"allowed_token_ids": (1, True)}, {"bad_words": ((1, "2"),)},
        {"logit_bias": ((1.5, 2.0),)}, {"logprobs": 0, "logprob_token_ids": (None,)},
    ],
)  # fmt: skip
def test_token_ids_are_integers(params):
    with pytest.raises(InvalidParameter, match="must be integers") as refusal:
        SamplingParams(**params).check_token_ids(100)
    assert refusal.value.param in params
