"""The native sampler: one thread passes over each row, and a row pays only for the features that it uses."""

import jax
import jax.numpy as jnp

from engine.backends.native.library import target
from engine.backends.native.sample_header import is_updated
from sampling.draw import uniforms
from sampling.host.rows import SamplingRows
from sampling.logprobs import LISTED, NUM_COLUMNS
from sampling.processors.logits_processor import FeatureStates
from sampling.sampler import SamplerBackend


def argmax(logits: jax.Array, slots: jax.Array, num_slots: int) -> jax.Array:
    """The first of the best tokens of each row, or the vocabulary's size where a logit is NaN; int32[num_rows].

    A row whose slot is not below `num_slots` is padding and is not read.
    """
    out = jax.ShapeDtypeStruct((logits.shape[0],), jnp.int32)
    tokens: jax.Array = jax.ffi.ffi_call(target("argmax"), out)(logits, slots, num_slots=num_slots)
    return tokens


def random(logits: jax.Array, rows: SamplingRows, num_slots: int) -> jax.Array:
    """As `sampling.sampler.portable_random`, except that padding rows get any value; int32[num_rows]."""
    call = jax.ffi.ffi_call(target("sample_random"), jax.ShapeDtypeStruct((logits.shape[0],), jnp.int32))
    tokens: jax.Array = call(logits, rows.ints, rows.floats, uniforms(rows), num_slots=num_slots)
    return tokens


def full(
    logits: jax.Array, states: FeatureStates, rows: SamplingRows, mask: jax.Array, num_slots: int
) -> tuple[jax.Array, FeatureStates]:
    """As `sampling.sampler.portable_full`, except that rows without logprobs have zeros behind the token.

    The states are updated in place. Their arrays go in the order of the generated header (`sample_header`).
    """
    inputs = (logits, rows.ints, rows.floats, uniforms(rows), mask)
    arrays, tree = jax.tree.flatten(states)
    updated = [index for index, changes in enumerate(is_updated(states)) if changes]
    out = [jax.ShapeDtypeStruct((logits.shape[0], NUM_COLUMNS), jnp.int32)]
    out += [jax.ShapeDtypeStruct(arrays[index].shape, arrays[index].dtype) for index in updated]
    aliases = {len(inputs) + index: result for result, index in enumerate(updated, start=1)}
    columns, *changed = jax.ffi.ffi_call(target("sample_full"), out, input_output_aliases=aliases)(*inputs, *arrays)
    for index, array in zip(updated, changed, strict=True):
        arrays[index] = array
    return columns, jax.tree.unflatten(tree, arrays)


def logprobs(logits: jax.Array, tokens: jax.Array, listed: jax.Array) -> jax.Array:
    """As `sampling.logprobs.portable_logprobs`."""
    out = jax.ShapeDtypeStruct((logits.shape[0], LISTED + listed.shape[1]), jnp.int32)
    columns: jax.Array = jax.ffi.ffi_call(target("logprobs"), out)(logits, tokens, listed)
    return columns


NATIVE = SamplerBackend(argmax, random, full, logprobs)
