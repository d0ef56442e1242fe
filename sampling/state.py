"""What the device remembers of each running request between steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sampling.host.rows import USES, SamplingRows
from sampling.host.usage import BITS
from sampling.logprobs import LOGPROBS
from sampling.processors.allowed_tokens import ALLOWED_TOKENS
from sampling.processors.bad_words import BAD_WORDS
from sampling.processors.dry import DRY
from sampling.processors.feature import Admission, Allocate, Feature, StateShape
from sampling.processors.history import HISTORY
from sampling.processors.logit_bias import LOGIT_BIAS, Biases
from sampling.processors.min_tokens import MIN_TOKENS_FEATURE
from sampling.processors.penalties import PENALTIES, SeenTokens


class Slots(NamedTuple):
    """What every request has, by slot; donated to each `sample` and replaced by its result."""

    last_token: jax.Array  # int32[num_slots], the token sampled last: the next step's input

    @classmethod
    def zeros(cls, num_slots: int) -> Slots:
        return cls(last_token=jnp.zeros(num_slots, jnp.int32))


class FeatureStates(NamedTuple):
    """What features keep of the requests that use them, by slot; of other slots anything.

    The fields have the names of `FEATURES`, which are those of sampling/host/usage.py.
    """

    history: jax.Array
    allowed_tokens: jax.Array
    logit_bias: Biases
    min_tokens: jax.Array
    bad_words: jax.Array
    penalties: SeenTokens
    dry: jax.Array
    logprobs: jax.Array

    @classmethod
    def allocate(cls, shape: StateShape, allocate: Allocate) -> FeatureStates:
        """Args:
        allocate: makes an array; its content need not be anything.
        """
        return cls(**{name: feature.allocate(shape, allocate) for name, feature in FEATURES.items()})


FEATURES: dict[str, Feature[Any, Any]] = {
    "history": HISTORY,
    "allowed_tokens": ALLOWED_TOKENS,
    "logit_bias": LOGIT_BIAS,
    "min_tokens": MIN_TOKENS_FEATURE,
    "bad_words": BAD_WORDS,
    "penalties": PENALTIES,
    "dry": DRY,
    "logprobs": LOGPROBS,
}


def row_of(name: str, admission: Admission, shape: StateShape) -> Any:
    """What a feature writes into the slot of an admitted request, as numpy arrays."""
    return FEATURES[name].row(admission, shape)


def write_row(state: Any, slot: jax.Array, row: Any) -> Any:
    """A feature's state with one slot's row replaced; the state is donated."""
    return jax.tree.map(lambda array, new: array.at[slot].set(new), state, row)


def uses(rows: SamplingRows, name: str) -> jax.Array:
    """Which rows use a feature, bool[num_rows]."""
    return jnp.asarray(rows.ints)[:, USES] & BITS[name] != 0
