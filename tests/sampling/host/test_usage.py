"""Which features a request uses, and which program it needs."""

import pytest

from sampling.host.params import SamplingParams
from sampling.host.rows import BITS, SamplerVariant, level_of, used_features, uses_bits


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({}, []),
        (dict(temperature=0.0), []),
        (dict(temperature=0.5, top_k=3, top_p=0.5, min_p=0.1, typical_p=0.5, top_n_sigma=1.0, xtc_probability=0.5), []),
        (dict(seed=3, stop_token_ids=(1,), ignore_eos=True, prompt_logprobs=3), []),
        (dict(dry_base=2.0, dry_allowed_length=3, dry_breaker_ids=(1,)), []),  # with a multiplier of 0
        (dict(allowed_token_ids=(0,)), ["allowed_tokens"]),
        (dict(logit_bias=((0, 0.0),)), ["logit_bias"]),
        (dict(min_tokens=1), ["min_tokens"]),
        (dict(bad_words=((1,),)), ["history", "bad_words"]),
        (dict(presence_penalty=-0.1), ["penalties"]),
        (dict(frequency_penalty=0.1), ["penalties"]),
        (dict(repetition_penalty=0.9), ["penalties"]),
        (dict(dry_multiplier=0.1), ["history", "dry"]),
        (dict(logprobs=0), ["logprobs"]),
        (dict(logprobs=0, drawn_logprobs=True), ["logprobs", "drawn_logprobs"]),
        (dict(drawn_logprobs=True), []),
    ],
)
def test_what_a_request_uses(params, names):
    params = SamplingParams(**params)
    assert sorted(used_features(params)) == sorted(set(names) - {"drawn_logprobs"})  # which keeps nothing
    assert uses_bits(params) == sum(BITS[name] for name in names)
    assert uses_bits(params, has_grammar=True) == uses_bits(params) + BITS["grammar"]


def test_bits_are_apart():
    assert sum(BITS.values()) == 2 ** len(BITS) - 1


@pytest.mark.parametrize(
    ("params", "has_grammar", "level"),
    [
        (dict(temperature=0.0), False, SamplerVariant.GREEDY),
        (
            dict(temperature=0.0, top_k=5, top_p=0.5),
            False,
            SamplerVariant.GREEDY,
        ),  # at temperature 0 they change nothing
        (dict(temperature=0.1), False, SamplerVariant.RANDOM),
        (dict(), False, SamplerVariant.RANDOM),
        (dict(temperature=0.0), True, SamplerVariant.FULL),
        (dict(temperature=0.0, logprobs=0), False, SamplerVariant.FULL),
        (dict(frequency_penalty=0.1), False, SamplerVariant.FULL),
    ],
)
def test_the_program_it_needs(params, has_grammar, level):
    assert level_of(SamplingParams(**params), has_grammar=has_grammar) is level


def test_the_highest_level_is_the_largest_number():
    assert SamplerVariant.GREEDY < SamplerVariant.RANDOM < SamplerVariant.FULL
