"""The Llama architecture (Touvron et al., "LLaMA", 2023) as pure functions over a parameter tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.storage import KVPages
from engine.attention import TokenLayout, paged_attention


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and constants of one model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int  # tokens it was trained for
    rope_theta: float
    rms_norm_eps: float

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


class LlamaLayers(NamedTuple):
    """Weights of all layers, stacked; products apply from the right (`x @ w`)."""

    attention_norm: jax.Array  # [num_layers, hidden]
    qkv: jax.Array  # [num_layers, hidden, q_size + 2 * kv_size]
    attention_output: jax.Array  # [num_layers, q_size, hidden]
    mlp_norm: jax.Array  # [num_layers, hidden]
    gate_up: jax.Array  # [num_layers, hidden, 2 * intermediate]
    down: jax.Array  # [num_layers, intermediate, hidden]


class LlamaParams(NamedTuple):
    """The parameter tree: few leaves, because calling a program costs time for each."""

    embedding: jax.Array  # [vocab, hidden]
    layers: LlamaLayers
    output_norm: jax.Array  # [hidden]
    output: jax.Array | None  # [vocab, hidden]; None where the embedding serves (tied)


def forward(
    params: LlamaParams, config: LlamaConfig, tokens: jax.Array, kv: KVPages, layout: TokenLayout
) -> tuple[jax.Array, KVPages]:
    """Runs a step's tokens through all layers.

    Args:
        tokens: int32[num_tokens].
        kv: the pages of all layers, updated in place.

    Returns:
        [num_tokens, hidden], not yet normalised, and kv.
    """
    hidden = params.embedding[tokens]
    cos, sin = _rotations(layout.positions, config)

    def layer(
        carry: tuple[jax.Array, KVPages], scanned: tuple[jax.Array, LlamaLayers]
    ) -> tuple[tuple[jax.Array, KVPages], None]:
        x, kv = carry
        index, weights = scanned
        qkv = _rms_norm(x, weights.attention_norm, config.rms_norm_eps) @ weights.qkv
        q, k, v = jnp.split(qkv, [config.q_size, config.q_size + config.kv_size], axis=-1)
        q = _rotate(q.reshape(-1, config.num_heads, config.head_dim), cos, sin)
        k = _rotate(k.reshape(-1, config.num_kv_heads, config.head_dim), cos, sin)
        v = v.reshape(-1, config.num_kv_heads, config.head_dim)
        attended, kv = paged_attention(q, k, v, kv, index, layout)
        x = x + attended @ weights.attention_output
        gate, up = jnp.split(_rms_norm(x, weights.mlp_norm, config.rms_norm_eps) @ weights.gate_up, 2, axis=-1)
        return (x + (jax.nn.silu(gate) * up) @ weights.down, kv), None

    (hidden, kv), _ = lax.scan(layer, (hidden, kv), (jnp.arange(config.num_layers), params.layers))
    return hidden, kv


def logits(params: LlamaParams, config: LlamaConfig, hidden: jax.Array) -> jax.Array:
    """float32[num_rows, vocab] of the rows [num_rows, hidden] that `forward` returned."""
    normed = _rms_norm(hidden, params.output_norm, config.rms_norm_eps)
    weights = params.embedding if params.output is None else params.output
    return jnp.einsum("re,ve->rv", normed, weights, preferred_element_type=jnp.float32)


def _rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019; in float32 whatever x is."""
    wide = x.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return normed.astype(x.dtype) * weight


def _rotations(positions: jax.Array, config: LlamaConfig) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines of the rotary embedding, each float32[num_tokens, 1, head_dim / 2]."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
    frequencies = (1.0 / np.float32(config.rope_theta) ** exponents).astype(np.float32)
    angles = positions.astype(jnp.float32)[:, None, None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def _rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Su et al., "RoFormer", 2021; feature i is paired with feature i + head_dim / 2.

    Args:
        x: [num_tokens, num_heads, head_dim].
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)
