"""The Llama architecture (Touvron et al., "LLaMA", 2023) as pure functions over a parameter tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.storage import KVLayout, KVPages
from engine.kernels.xla import products
from engine.kernels.xla.attention import TokenLayout, attend
from engine.kernels.xla.products import Matrix


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

    def kv_layout(self, num_pages: int, page_size: int, dtype: str) -> KVLayout:
        """The layout of this model's pages, of `page_size` tokens each."""
        return KVLayout(self.num_layers, num_pages, page_size, self.num_kv_heads, self.head_dim, dtype)


class LlamaLayers(NamedTuple):
    """Weights of all layers, stacked; of matrices, inputs and outputs are named."""

    attention_norm: jax.Array  # [num_layers, hidden]
    qkv: Matrix  # hidden to q_size + 2 * kv_size
    attention_output: Matrix  # q_size to hidden
    mlp_norm: jax.Array  # [num_layers, hidden]
    gate_up: Matrix  # hidden to 2 * intermediate
    down: Matrix  # intermediate to hidden


class LlamaParams(NamedTuple):
    """The parameter tree: few leaves, because calling a program costs time for each."""

    embedding: Matrix  # [vocab, hidden]
    layers: LlamaLayers
    output_norm: jax.Array  # [hidden]
    output: Matrix | None  # [vocab, hidden]; None where the embedding serves (tied)


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
    hidden = products.embed(params.embedding, tokens, layout)
    rotations = _rotations(layout.positions, config)
    layers, epsilon = params.layers, config.rms_norm_eps

    def layer(index: jax.Array, carry: tuple[jax.Array, KVPages]) -> tuple[jax.Array, KVPages]:
        x, kv = carry
        qkv = products.norm_product(x, layers.attention_norm, layers.qkv, index, layout, epsilon)
        attended, kv = attend(qkv, rotations, kv, index, layout, num_heads=config.num_heads)
        x = products.add_product(x, attended, layers.attention_output, index, layout)
        mixed = products.gated_norm_product(x, layers.mlp_norm, layers.gate_up, index, layout, epsilon)
        return products.add_product(x, mixed, layers.down, index, layout), kv

    hidden, kv = lax.fori_loop(0, config.num_layers, layer, (hidden, kv))
    return hidden, kv


def logits(params: LlamaParams, config: LlamaConfig, hidden: jax.Array, sampled: jax.Array) -> jax.Array:
    """float32[num_sampled_rows, vocab] of some of the tokens that `forward` returned.

    Args:
        sampled: int32[num_sampled_rows], indices of tokens, negative in padding rows.
    """
    weights = params.embedding if params.output is None else params.output
    return products.head_product(hidden, sampled, params.output_norm, weights, config.rms_norm_eps)


def _rotations(positions: jax.Array, config: LlamaConfig) -> jax.Array:
    """Cosines and then sines of the rotary embedding, float32[num_tokens, head_dim]."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
    frequencies = (1.0 / np.float32(config.rope_theta) ** exponents).astype(np.float32)
    angles = positions.astype(jnp.float32)[:, None] * frequencies
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
