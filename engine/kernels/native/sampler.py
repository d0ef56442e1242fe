"""The sampler's body in C++: one thread passes over each row, and a row pays only for what it asks for."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from engine.kernels.native.library import target
from sampling.draw import uniforms
from sampling.host.rows import SamplingRows
from sampling.logprobs import LISTED, NUM_COLUMNS
from sampling.sampler import SamplerBody
from sampling.state import FeatureStates


def argmax(logits: jax.Array, slots: jax.Array, num_slots: int) -> jax.Array:
    """The first of the best tokens of each row, or the vocabulary's size where a logit is NaN; int32[num_rows].

    Args:
        logits: float32[num_rows, vocab].
        slots: int32[num_rows]; a row whose slot is not below `num_slots` is padding and is not read.
    """
    out = jax.ShapeDtypeStruct((logits.shape[0],), jnp.int32)
    tokens: jax.Array = jax.ffi.ffi_call(target("argmax"), out)(logits, slots, num_slots=num_slots)
    return tokens


def random(logits: jax.Array, rows: SamplingRows, num_slots: int) -> jax.Array:
    """As `sampling.sampler.portable_random`, except that anything stands in padding rows; int32[num_rows]."""
    call = jax.ffi.ffi_call(target("sample_random"), jax.ShapeDtypeStruct((logits.shape[0],), jnp.int32))
    tokens: jax.Array = call(logits, rows.ints, rows.floats, uniforms(rows), num_slots=num_slots)
    return tokens


def full(
    logits: jax.Array, states: FeatureStates, rows: SamplingRows, mask: jax.Array, num_slots: int
) -> tuple[jax.Array, FeatureStates]:
    """As `sampling.sampler.portable_full`, except that rows have zeros behind the token where they use no logprobs.

    History and counts are updated in place.

    Args:
        states: of `num_slots` slots.
    """
    history, penalties, biases = states.history, states.penalties, states.logit_bias
    inputs = (
        logits, rows.ints, rows.floats, uniforms(rows), mask,
        history, states.allowed_tokens, biases.token_ids, biases.values, states.min_tokens, states.bad_words,
        penalties.counts, penalties.prompt, states.dry, states.logprobs,
    )  # fmt: skip
    out = tuple(
        jax.ShapeDtypeStruct(shape, jnp.int32)
        for shape in ((logits.shape[0], NUM_COLUMNS), history.shape, penalties.counts.shape)
    )
    call = jax.ffi.ffi_call(target("sample_full"), out, input_output_aliases={5: 1, 11: 2})
    columns, history, counts = call(*inputs)
    return columns, states._replace(history=history, penalties=penalties._replace(counts=counts))


def logprobs(logits: jax.Array, tokens: jax.Array, listed: jax.Array) -> jax.Array:
    """As `sampling.logprobs.portable_logprobs`."""
    out = jax.ShapeDtypeStruct((logits.shape[0], LISTED + listed.shape[1]), jnp.int32)
    columns: jax.Array = jax.ffi.ffi_call(target("logprobs"), out)(logits, tokens, listed)
    return columns


NATIVE = SamplerBody(argmax, random, full, logprobs)
