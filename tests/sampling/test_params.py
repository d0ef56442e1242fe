"""Parameters outside their limits are refused by name, value and limit."""

import math

import pytest

from sampling.params import InvalidParameter, SamplingParams


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_tokens", 0, "max_tokens is 0; it must be at least 1"),
        ("temperature", -0.1, "temperature is -0.1; it must be from 0 to 2"),
        ("temperature", 2.5, "it must be from 0 to 2"),
        ("temperature", math.nan, "temperature is nan"),
        ("top_k", -2, "top_k is -2"),
        ("top_p", 0.0, "top_p is 0.0; it must be above 0 and at most 1"),
        ("top_p", 1.1, "it must be above 0 and at most 1"),
        ("min_p", -0.5, "min_p is -0.5; it must be from 0 to 1"),
        ("min_p", math.nan, "min_p is nan"),
        ("seed", 2**63, "it must fit in 64 bits"),
        ("stop_token_ids", tuple(range(65)), "stop_token_ids has 65 entries; at most 64 are allowed"),
    ],
)
def test_a_value_outside_its_limits_is_named(name, value, words):
    with pytest.raises(InvalidParameter, match=words.replace("(", r"\(")) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


def test_the_limits_themselves_are_allowed():
    params = SamplingParams(max_tokens=1, temperature=0.0, top_k=-1, top_p=1.0, min_p=1.0, seed=-(2**63))
    assert (params.max_tokens, params.temperature, params.top_k, params.min_p) == (1, 0.0, -1, 1.0)
    assert SamplingParams(temperature=2.0, min_p=0.0, seed=2**63 - 1).seed == 2**63 - 1
