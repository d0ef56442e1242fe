"""The native backend: the C++ kernels behind the interface of every backend."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
from engine.backends.base.backend import Backend
from engine.backends.base.empty_arrays import EmptyArrays
from engine.backends.base.model_config import ModelConfig
from engine.backends.base.operands import (
    Activation,
    AttentionConstants,
    Clamp,
    ExpertBiases,
    GatedDelta,
    LowRankPairs,
    Norm,
    NormKind,
    Picks,
)
from engine.backends.base.token_layout import TokenLayout
from engine.backends.native import library, products, recurrence
from engine.backends.native.attention import HEAD_MULTIPLE, LARGEST_HEAD, attention
from engine.backends.native.bursts import NativeBursts
from engine.backends.native.matrices import PackedLayout
from engine.backends.native.patch_attention import attend_patches
from engine.backends.native.products import add_experts
from engine.backends.native.sampler import NATIVE
from engine.backends.native.state_space import convolution, state_space
from engine.weights.packing import GROUP, TILE, PackedMatrix

_NOTHING = np.zeros(0, np.float32)  # in place of a norm or a bias


class NativeProducts:
    """`Products` of weights that `PackedLayout` has made; padding tokens are neither read nor written."""

    def embed(self, weights: PackedMatrix, tokens: jax.Array, layout: TokenLayout, *, scale: float = 1.0) -> jax.Array:
        return products.embed(tokens, layout.rows, weights, scale=scale, num_tiles=layout.num_tiles)

    def norm(self, x: jax.Array, norm: Norm, layer: jax.Array, layout: TokenLayout) -> jax.Array:
        weight, bias, kind, epsilon = _of_norm(norm)
        return products.norm(
            x, layout.rows, layer, weight, bias, norm_kind=kind, epsilon=epsilon, num_tiles=layout.num_tiles
        )

    def norm_product(
        self, x: jax.Array, norm: Norm | None, weights: PackedMatrix, layer: jax.Array, layout: TokenLayout, *,
        bias: jax.Array | None = None, activation: Activation = Activation.NONE, is_gated: bool = False,
        pairs: LowRankPairs | None = None,
    ) -> jax.Array:  # fmt: skip
        weight, norm_bias, kind, epsilon = _of_norm(norm)
        return products.norm_product(
            x, layout.rows, layer, weight, norm_bias, weights, _or_nothing(bias),
            norm_kind=kind, epsilon=epsilon, activation=activation, is_gated=is_gated, num_tiles=layout.num_tiles,
            pairs=pairs,
        )  # fmt: skip

    def add_product(
        self, addend: jax.Array, x: jax.Array, weights: PackedMatrix, layer: jax.Array, layout: TokenLayout, *,
        bias: jax.Array | None = None, scale: float = 1.0, pairs: LowRankPairs | None = None,
    ) -> jax.Array:  # fmt: skip
        """As `Products.add_product`, in place."""
        return products.add_product(
            addend, x, layout.rows, layer, weights, _or_nothing(bias),
            scale=scale, num_tiles=layout.num_tiles, pairs=pairs,
        )  # fmt: skip

    def add_experts(
        self, addend: jax.Array, x: jax.Array, gate_up: PackedMatrix, down: PackedMatrix, picks: Picks,
        layer: jax.Array, layout: TokenLayout, *, activation: Activation, is_gated: bool = True,
        clamp: Clamp | None = None, biases: ExpertBiases | None = None,
    ) -> jax.Array:  # fmt: skip
        """As `Products.add_experts`, in place."""
        return add_experts(
            addend, x, gate_up, down, picks, layer, layout,
            activation=activation, is_gated=is_gated, clamp=clamp, biases=biases,
        )  # fmt: skip

    def head_product(
        self, x: jax.Array, sampled: jax.Array, norm: Norm | None, weights: PackedMatrix, *,
        bias: jax.Array | None = None, scale: float = 1.0, softcap: float = 0.0,
    ) -> jax.Array:  # fmt: skip
        weight, norm_bias, kind, epsilon = _of_norm(norm)
        return products.head_product(
            x, sampled, weight.reshape(-1), norm_bias.reshape(-1), weights,
            norm_kind=kind, epsilon=epsilon, scale=scale, softcap=softcap, bias=_or_nothing(bias).reshape(-1),
        )  # fmt: skip


def attend(
    qkv: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout, constants: AttentionConstants
) -> tuple[jax.Array, KVPages]:
    """As `Attention`; padding tokens are neither read nor written."""
    q_norm, _, _, q_epsilon = _of_norm(constants.q_norm)
    k_norm, _, _, k_epsilon = _of_norm(constants.k_norm)
    attended, kv = attention(
        qkv.astype(jnp.float32), constants.rotations, constants.tables, constants.windows, q_norm, k_norm,
        layout.rows, layout.page_table, layer, kv,
        num_heads=constants.num_heads, num_tiles=layout.num_tiles, sinks=_or_nothing(constants.sinks),
        scale=constants.scale, softcap=constants.softcap, epsilon=max(q_epsilon, k_epsilon),
        is_causal=constants.is_causal, slopes=_or_nothing(constants.distance_slopes),
        rounds_biases=constants.rounds_biases, index=constants.index, last_seen=layout.last_seen, groups=layout.groups,
    )  # fmt: skip
    return attended.astype(qkv.dtype), kv


def gated_delta(
    qkvz: jax.Array, beta: jax.Array, alpha: jax.Array, kv: KVPages, layer: jax.Array, layout: TokenLayout,
    constants: GatedDelta,
) -> tuple[jax.Array, KVPages]:  # fmt: skip
    """As `Recurrence`; padding tokens are neither read nor written."""
    made, states = recurrence.gated_delta(
        qkvz.astype(jnp.float32), beta.astype(jnp.float32), alpha.astype(jnp.float32), layout.rows, layer, kv.states,
        constants, num_tiles=layout.num_tiles,
    )  # fmt: skip
    return made.astype(qkvz.dtype), kv._replace(states=states)


def _of_norm(norm: Norm | None) -> tuple[jax.Array | np.ndarray, jax.Array | np.ndarray, NormKind, float]:
    """Weight, bias, kind and epsilon as the kernels take them."""
    if norm is None:
        return _NOTHING, _NOTHING, NormKind.NONE, 0.0
    return norm.weight, _or_nothing(norm.bias), norm.kind, norm.epsilon


def _or_nothing(bias: jax.Array | np.ndarray | None) -> jax.Array | np.ndarray:
    return _NOTHING if bias is None else bias


def _uninitialised(shape: jax.ShapeDtypeStruct) -> jax.Array:
    """An array whose memory is not written, so that a large one takes none until a step writes to it."""
    array: jax.Array = jax.ffi.ffi_call(library.target("empty"), shape)()
    return array


def _load() -> str:
    return f"native kernels for {library.load()}"


def products_unsupported_reason(model: ModelConfig) -> str | None:
    """Why native products do not support a model, or None where they do."""
    sizes, joined = model.product_inputs, model.joined_outputs
    if all(size % GROUP == 0 for size in sizes.values()) and all(size % TILE == 0 for size in joined.values()):
        return None
    listed = ", ".join(f"{name} {size}" for name, size in {**sizes, **joined}.items())
    of_joined = f", of {' and '.join(joined)} in multiples of {TILE}" if joined else ""
    return f"native products take sizes in multiples of {GROUP}{of_joined}; the model has {listed}"


def attention_unsupported_reason(model: ModelConfig) -> str | None:
    """Why native attention does not support a model, or None where it does."""
    for name, size in model.recurrence_sizes.items():
        if size % recurrence.HEAD_MULTIPLE or size > recurrence.LARGEST_HEAD:
            return (
                f"the native recurrence takes heads of up to {recurrence.LARGEST_HEAD} features in multiples of "
                f"{recurrence.HEAD_MULTIPLE}; the model's {name} have {size}"
            )
    if not model.num_paged_layers or (model.head_dim % HEAD_MULTIPLE == 0 and model.head_dim <= LARGEST_HEAD):
        return None
    return (
        f"native attention takes heads of up to {LARGEST_HEAD} features in multiples of {HEAD_MULTIPLE}; "
        f"the model's have {model.head_dim}"
    )


def encoder_unsupported_reason(inputs: Mapping[str, int]) -> str | None:
    """Why native products do not support an encoder of pictures, or None where they do."""
    if all(size % GROUP == 0 for size in inputs.values()):
        return None
    listed = ", ".join(f"{name} {size}" for name, size in inputs.items())
    return f"native products take inputs in multiples of {GROUP}; those of the encoder of pictures are {listed}"


BACKEND = Backend(
    name="native",
    load=_load,
    products_unsupported_reason=products_unsupported_reason,
    attention_unsupported_reason=attention_unsupported_reason,
    encoder_unsupported_reason=encoder_unsupported_reason,
    weights=PackedLayout(),
    products=NativeProducts(),
    sampler=NATIVE,
    attention=attend,
    patch_attention=attend_patches,
    recurrence=gated_delta,
    convolution=convolution,
    state_space=state_space,
    kv_dtype=library.page_type,
    bursts=NativeBursts(),
    is_opaque_to_xla=True,
    empty=EmptyArrays(_uninitialised),
)
