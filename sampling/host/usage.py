"""Which features a request uses, and so how much of the sampler it needs. Host logic, without JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sampling.host.params import SamplingParams
from sampling.host.rows import Level

# The features that keep something for each slot; sampling/state.py has them by these names.
_IS_USED: Mapping[str, Callable[[SamplingParams], bool]] = {
    "history": lambda p: bool(p.bad_words) or p.dry_multiplier > 0.0,
    "allowed_tokens": lambda p: p.allowed_token_ids is not None,
    "logit_bias": lambda p: bool(p.logit_bias),
    "min_tokens": lambda p: p.min_tokens > 0,
    "bad_words": lambda p: bool(p.bad_words),
    "penalties": lambda p: (p.presence_penalty, p.frequency_penalty, p.repetition_penalty) != (0.0, 0.0, 1.0),
    "dry": lambda p: p.dry_multiplier > 0.0,
    "logprobs": lambda p: p.logprobs is not None,
}
GRAMMAR = "grammar"  # keeps nothing on the device: its mask comes with the step

# Bits of the USES column.
BITS = {name: 1 << index for index, name in enumerate((*_IS_USED, GRAMMAR))}


def used_features(params: SamplingParams) -> list[str]:
    """Names of the features with state that a request uses."""
    return [name for name, is_used in _IS_USED.items() if is_used(params)]


def uses_bits(params: SamplingParams, *, has_grammar: bool = False) -> int:
    """The features of a request as the USES column says them."""
    return sum(BITS[name] for name in used_features(params)) | (BITS[GRAMMAR] if has_grammar else 0)


def level_of(params: SamplingParams, *, has_grammar: bool = False) -> Level:
    """The least program that does what a request asks for."""
    if uses_bits(params, has_grammar=has_grammar):
        return Level.FULL
    return Level.GREEDY if params.temperature == 0.0 else Level.RANDOM
