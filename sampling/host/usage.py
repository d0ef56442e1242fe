"""Which features a request uses, and so how much of the sampler it needs. Host logic, without JAX."""

from __future__ import annotations

from sampling.host.features import FEATURES, GRAMMAR, Stage
from sampling.host.params import SamplingParams
from sampling.host.rows import SamplerVariant

# Bits of the USES column. Cuts have none: their columns say what they do.
_BEYOND_CUTS = tuple(feature for feature in FEATURES if feature.stage is not Stage.CUT)
BITS = {feature.name: 1 << index for index, feature in enumerate(_BEYOND_CUTS)}


def used_features(params: SamplingParams) -> list[str]:
    """Names of the features, cuts and grammar aside, that a request uses; each of them keeps something for it."""
    return [feature.name for feature in _BEYOND_CUTS if feature.is_used(params)]


def uses_bits(params: SamplingParams, *, has_grammar: bool = False) -> int:
    """The features of a request as the USES column says them."""
    return sum(BITS[name] for name in used_features(params)) | (BITS[GRAMMAR] if has_grammar else 0)


def level_of(params: SamplingParams, *, has_grammar: bool = False) -> SamplerVariant:
    """The least program that does what a request asks for."""
    if uses_bits(params, has_grammar=has_grammar):
        return SamplerVariant.FULL
    return SamplerVariant.GREEDY if params.temperature == 0.0 else SamplerVariant.RANDOM
