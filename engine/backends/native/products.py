"""Products of activations with packed weights by the native kernels, as functions of JAX arrays.

Weights, norms and biases are whole stacks over the layers, and an index selects the layer, so that no slice is made. An
empty array stands for an absent norm or bias. `rows` are int32[num_rows, columns], whose first two columns are a row's
start and number of tokens; the last `num_tiles` are tiles. Rows of padding tokens are undefined in the result.
"""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from engine.backends.base.operands import Activation, Clamp, ExpertBiases, LowRankPairs, NormKind, Picks
from engine.backends.base.token_layout import TokenLayout
from engine.backends.native.library import target
from engine.weights.packing import ALIGNMENT, Format, PackedMatrix

Array: TypeAlias = jax.Array | np.ndarray

_NOTHING = np.zeros(0, np.float32)  # in place of biases and of adapters
_NO_RANKS = np.zeros(0, np.int32)
_CLAMPED, _LIMITED = 7, 10  # what stands for an activation where there is a clamp; as src/products/finish.h has it
_AS_BFLOAT16 = 64  # on top of a format of integers: they are multiplied as bfloat16; as src/ffi/stack.h has it


def norm(
    x: Array, rows: Array, layer: Array, weight: Array, bias: Array, *, norm_kind: int, epsilon: float, num_tiles: int
) -> jax.Array:
    """norm(x), float32[num_tokens, size]; raises ValueError if the norm's arrays do not belong to its kind."""
    _check_norm(norm_kind, weight, bias)
    call = jax.ffi.ffi_call(target("norm"), jax.ShapeDtypeStruct(x.shape, jnp.float32))
    normed: jax.Array = call(
        x, rows, layer, weight, bias, num_tiles=num_tiles, norm_kind=int(norm_kind), epsilon=np.float32(epsilon)
    )
    return normed


def norm_product(
    x: Array, rows: Array, layer: Array, norm: Array, norm_bias: Array,
    weights: PackedMatrix, bias: Array, *,
    norm_kind: int, epsilon: float, activation: int, is_gated: bool, num_tiles: int, pairs: LowRankPairs | None = None,
) -> jax.Array:  # fmt: skip
    """activation(norm(x) @ weights[layer]ᵀ + bias[layer]), or gated, activation(gate) * up.

    A gated product is that of Shazeer, "GLU variants improve transformer", 2020; the gate's parts come before those of
    `up`. Arrays are float32: norms [num_layers, inputs], bias [num_layers, outputs], result [num_tokens, outputs].
    Beside the bias stands what the adapters of rows add, whose pairs lie as `PackedLayout` arranges them.

    Raises ValueError: the kind of norm or activation is unknown, or the norm's arrays do not belong to its kind.
    """
    _check_norm(norm_kind, norm, norm_bias)
    if activation not in list(Activation):
        raise ValueError(f"activation is {activation}; it is one of {[*map(int, Activation)]}")
    num_outputs = weights.num_outputs // 2 if is_gated else weights.num_outputs
    call = jax.ffi.ffi_call(target("norm_product"), jax.ShapeDtypeStruct((x.shape[0], num_outputs), jnp.float32))
    product: jax.Array = call(
        x, rows, layer, norm, norm_bias, weights.blocks, places_of(weights), bias, *_arrays_of(pairs),
        num_tiles=num_tiles, **_sizes(weights), norm_kind=int(norm_kind), epsilon=np.float32(epsilon),
        activation=int(activation), is_gated=is_gated, ends=_ends_of(pairs),
    )  # fmt: skip
    return product


def add_product(
    addend: Array, x: Array, rows: Array, layer: Array, weights: PackedMatrix, bias: Array, *,
    scale: float = 1.0, num_tiles: int, pairs: LowRankPairs | None = None,
) -> jax.Array:  # fmt: skip
    """addend + scale * (x @ weights[layer]ᵀ + bias[layer]), float32[num_tokens, outputs], in place of the addend.

    Pairs as in `norm_product`.
    """
    out = jax.ShapeDtypeStruct(addend.shape, jnp.float32)
    call = jax.ffi.ffi_call(target("add_product"), out, input_output_aliases={0: 0})
    total: jax.Array = call(
        addend, x, rows, layer, weights.blocks, places_of(weights), bias, *_arrays_of(pairs),
        num_tiles=num_tiles, **_sizes(weights), scale=np.float32(scale), ends=_ends_of(pairs),
    )  # fmt: skip
    return total


def head_product(
    x: Array, sampled: Array, norm: Array, norm_bias: Array, weights: PackedMatrix, *,
    norm_kind: int, epsilon: float, scale: float = 1.0, softcap: float = 0.0, bias: Array,
) -> jax.Array:  # fmt: skip
    """Logits float32[num_sampled, vocab]: z = scale * (norm(x) @ weightsᵀ + bias), or softcap * tanh(z / softcap).

    `sampled` are indices of tokens, negative in padding rows; a softcap of 0 is none. Raises ValueError for a wrong
    norm or a negative softcap.
    """
    _check_norm(norm_kind, norm, norm_bias)
    if softcap < 0.0:
        raise ValueError(f"softcap is {softcap}; it is not negative")
    out = jax.ShapeDtypeStruct((sampled.shape[0], weights.num_outputs), jnp.float32)
    call = jax.ffi.ffi_call(target("head_product"), out)
    logits: jax.Array = call(
        x, sampled, norm[None], norm_bias[None], weights.blocks, places_of(weights), bias[None],
        **_sizes(weights), norm_kind=int(norm_kind), epsilon=np.float32(epsilon),
        scale=np.float32(scale), softcap=np.float32(softcap),
    )  # fmt: skip
    return logits


def embed(tokens: Array, rows: Array, weights: PackedMatrix, *, scale: float = 1.0, num_tiles: int) -> jax.Array:
    """scale times the embedding's rows of int32[num_tokens], float32[num_tokens, hidden]."""
    out = jax.ShapeDtypeStruct((tokens.shape[0], weights.num_inputs), jnp.float32)
    embedded: jax.Array = jax.ffi.ffi_call(target("embed"), out)(
        tokens,
        rows,
        weights.blocks,
        places_of(weights),
        num_tiles=num_tiles,
        **_sizes(weights),
        scale=np.float32(scale),
    )
    return embedded


def places_of(weights: PackedMatrix) -> np.ndarray:
    """int32[entries, parts, 3], a constant of the program: format, offset in cache lines, stride in bytes."""
    placement = weights.placement

    def number(kind: Format) -> int:
        return kind | _AS_BFLOAT16 if placement.as_bfloat16 and kind.is_integer else kind

    places = [
        [(number(place.format), place.offset // ALIGNMENT, place.stride) for place in parts]
        for parts in placement.places
    ]
    return np.array(places, np.int32)


def _arrays_of(pairs: LowRankPairs | None) -> tuple[Array, Array, Array]:
    return (_NOTHING, _NOTHING, _NO_RANKS) if pairs is None else (pairs.down, pairs.up, pairs.ranks)


def _ends_of(pairs: LowRankPairs | None) -> np.ndarray:
    return np.array([0] if pairs is None else pairs.ends, np.int64)


def _sizes(weights: PackedMatrix) -> dict[str, Any]:
    """The attributes that every call has."""
    return {"tiles": np.array(weights.placement.tiles, np.int64), "num_inputs": weights.num_inputs}


def _check_norm(kind: int, norm: Array, norm_bias: Array) -> None:
    """Raises ValueError if a norm's arrays do not belong to its kind."""
    if kind not in list(NormKind):
        raise ValueError(f"norm_kind is {kind}; it is one of {[*map(int, NormKind)]}")
    name = NormKind(kind).name
    if kind == NormKind.NONE and norm.size:
        raise ValueError(f"norm has the shape {norm.shape}, but norm_kind is {name}, for which it is empty")
    if kind != NormKind.NONE and not norm.size:
        raise ValueError(f"norm is empty, but norm_kind is {name}, which has weights")
    if kind != NormKind.LAYER and norm_bias.size:
        raise ValueError(f"norm_bias has the shape {norm_bias.shape}, but norm_kind is {name}: only LAYER has a bias")


def add_experts(
    addend: jax.Array, x: jax.Array, gate_up: PackedMatrix, down: PackedMatrix, picks: Picks, layer: jax.Array,
    layout: TokenLayout, *, activation: Activation, is_gated: bool = True, clamp: Clamp | None = None,
    biases: ExpertBiases | None = None,
) -> jax.Array:  # fmt: skip
    """As `Products.add_experts`, in place of the addend.

    A token's experts are added up in the order of their numbers, so that a row alone equals the row in a batch.
    """
    out = jax.ShapeDtypeStruct(addend.shape, jnp.float32)
    call = jax.ffi.ffi_call(target("add_experts"), out, input_output_aliases={0: 0})
    total: jax.Array = call(
        addend, x, layout.rows, layer, picks.experts.astype(jnp.int32), picks.shares.astype(jnp.float32),
        gate_up.blocks, places_of(gate_up), down.blocks, places_of(down),
        *((_NOTHING, _NOTHING) if biases is None else biases),
        num_tiles=layout.num_tiles, gate_up_tiles=np.array(gate_up.placement.tiles, np.int64),
        down_tiles=np.array(down.placement.tiles, np.int64), num_inputs=gate_up.num_inputs,
        num_inner=down.num_inputs, num_experts=picks.num_experts,
        activation=int(activation) if clamp is None else _LIMITED if clamp.alpha is None else _CLAMPED,
        is_gated=is_gated, scale=np.float32(1.0 if clamp is None or clamp.alpha is None else clamp.alpha),
        softcap=np.float32(0.0 if clamp is None else clamp.limit),
    )  # fmt: skip
    return total
