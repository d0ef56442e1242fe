"""The family of mixtures with latent attention, such as DeepSeek-V3: pages hold what keys and values are made of."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import lax

from cache.storage import KVPages
from engine.backends.base.backend import Backends, Products
from engine.backends.base.operands import AttentionConstants, Norm
from engine.backends.base.token_layout import TokenLayout
from engine.models.parts.decoder import Names, in_layers
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.models.parts.routed.latent_config import LATENT_EPSILON, LatentConfig
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split, Stored
from engine.weights.tensors import Transform, Transposed, in_turn, interleaved, paired_rows, rows

_KV_NAMES: Names = ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa")


@dataclass(frozen=True)
class LatentDecoder(RoutedDecoder):
    """A token's keys and values are products of its latent with one matrix for each head.

    That of keys is multiplied with the queries instead, and that of values with what attention has mixed, so that
    attention itself has one head of keys, the latent behind the rotated features, and the same vectors as values.
    """

    config: LatentConfig
    is_paired_in_gguf = True
    takes_adapters = False  # parts of its layers are none of the products that adapters change
    # Whether a GGUF file, of an early converter, joins the matrices of keys and values as folders do.
    is_joined_in_gguf: bool = field(default=False, compare=False)

    def attention_leaves(self) -> list[Leaf]:
        config, hidden, sizes = self.config, self.config.hidden_size, self.config.latent
        latents, heads = self._latent_parts(), config.num_heads
        output = in_layers((hidden, heads * sizes.value_dim), self.attention_output_names)
        leaves = [
            *self.norm_leaves("kv_norm", sizes.kv_rank, ("self_attn.kv_a_layernorm", "attn_kv_a_norm")),
            Leaf("key_up", LeafKind.MATRIX, (self._key_part(),), Split.EXPERTS, num_experts=heads),
            Leaf("value_up", LeafKind.MATRIX, (self._value_part(),), Split.EXPERTS, num_experts=heads),
            Leaf("attention_output", LeafKind.MATRIX, (output,), Split.INPUTS),
        ]
        if not sizes.q_rank:
            queries = self._query_parts(hidden, ("self_attn.q_proj", "attn_q"))
            return [Leaf("qkv", LeafKind.MATRIX, (*queries, *latents)), *leaves]
        q_latent = in_layers((sizes.q_rank, hidden), ("self_attn.q_a_proj", "attn_q_a"))
        queries = self._query_parts(sizes.q_rank, ("self_attn.q_b_proj", "attn_q_b"))
        return [
            Leaf("qkv", LeafKind.MATRIX, (q_latent, *latents)),
            *self.norm_leaves("query_norm", sizes.q_rank, ("self_attn.q_a_layernorm", "attn_q_a_norm")),
            Leaf("queries", LeafKind.MATRIX, queries),
            *leaves,
        ]

    def _query_parts(self, inputs: int, names: Names) -> tuple[Part, Part]:
        """The features of all heads that are not rotated, and those that are."""
        heads, sizes = self.config.num_heads, self.config.latent
        nope, rope = (interleaved(heads, (sizes.nope_dim, sizes.rope_dim), (part,)) for part in (0, 1))
        return (
            in_layers((heads * sizes.nope_dim, inputs), names, folder_transform=nope, gguf_transform=nope),
            self._rotated_part((heads * sizes.rope_dim, inputs), names, rope),
        )

    def _latent_parts(self) -> tuple[Part, Part]:
        """The latent, and the rotated features of keys."""
        hidden, sizes = self.config.hidden_size, self.config.latent
        latent = rows(0, sizes.kv_rank, sizes.page_dim)
        rope = rows(sizes.kv_rank, sizes.page_dim, sizes.page_dim)
        return (
            in_layers((sizes.kv_rank, hidden), _KV_NAMES, folder_transform=latent, gguf_transform=latent),
            self._rotated_part((sizes.rope_dim, hidden), _KV_NAMES, rope),
        )

    def _rotated_part(self, shape: tuple[int, int], names: Names, take: Transform) -> Part:
        """Rows for a rotation of halves, of a tensor that may have them for one of adjacent features."""
        sizes = self.config.latent
        paired = in_turn(take, paired_rows(sizes.rope_dim, sizes.rope_dim))
        return in_layers(
            shape, names, folder_transform=paired if sizes.is_paired_in_folder else take,
            gguf_transform=paired if self.is_paired_in_gguf else take,
        )  # fmt: skip

    def _key_part(self) -> Part:
        """From the features of a head's query to those of the latent."""
        sizes = self.config.latent
        shape = (sizes.nope_dim + sizes.value_dim, sizes.kv_rank)
        take = in_turn(rows(0, sizes.nope_dim, shape[0]), Transposed)
        return self._head_part((sizes.kv_rank, sizes.nope_dim), "attn_k_b", take, shape)

    def _value_part(self) -> Part:
        """From the features of the latent to those of a head's value."""
        sizes = self.config.latent
        shape = (sizes.nope_dim + sizes.value_dim, sizes.kv_rank)
        take = rows(sizes.nope_dim, shape[0], shape[0])
        return self._head_part((sizes.value_dim, sizes.kv_rank), "attn_v_b", take, shape)

    def _head_part(self, shape: tuple[int, int], gguf: str, take: Transform, joined: tuple[int, int]) -> Part:
        """A matrix of each head, which a folder has within one of all heads."""
        of_folder = Stored("model.layers.{layer}.self_attn.kv_b_proj.weight", take, joined_shape=joined)
        of_gguf = Stored(f"blk.{{layer}}.{gguf}.weight")
        if self.is_joined_in_gguf:
            of_gguf = Stored("blk.{layer}.attn_kv_b.weight", take, joined_shape=joined)
        return Part(shape, {"safetensors": of_folder, "gguf": of_gguf})

    def attend(
        self, x: jax.Array, kv: KVPages, params: Params, index: jax.Array, layout: TokenLayout, backends: Backends,
        constants: AttentionConstants,
    ) -> tuple[jax.Array, KVPages]:  # fmt: skip
        products = backends.products
        of_heads, key, q_latent = self.queries_and_key(x, params, index, layout, products)
        of_heads, key, constants = self.indexed(
            of_heads, key, (x, q_latent), params, index, layout, products, constants
        )
        return self.attend_to_latents(of_heads, key, kv, params, index, layout, backends, constants)

    def queries_and_key(
        self, x: jax.Array, params: Params, index: jax.Array, layout: TokenLayout, products: Products
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Absorbed queries [num_tokens, num_heads, page_dim], keys, and the latent of queries before its norm."""
        config, sizes = self.config, self.config.latent
        num_tokens, heads = x.shape[0], config.num_heads
        made = products.norm_product(x, self.norm(params, "attention_norm"), params["qkv"], index, layout)
        latent_at, rotated_at = made.shape[1] - sizes.page_dim, made.shape[1] - sizes.rope_dim
        queries, latent, rotated = jnp.split(made, [latent_at, rotated_at], axis=1)
        q_latent = queries
        if sizes.q_rank:
            norm = self._latent_norm(params, "query_norm")
            queries = products.norm_product(queries, norm, params["queries"], index, layout)
        latent = products.norm(latent, self._latent_norm(params, "kv_norm"), index, layout).astype(x.dtype)
        plain, turning = jnp.split(queries, [heads * sizes.nope_dim], axis=1)
        absorbed = self._by_head(plain, params["key_up"], index, layout, products)
        of_heads = jnp.concatenate([turning.reshape(num_tokens, heads, -1), absorbed], axis=-1)
        return of_heads, jnp.concatenate([rotated, latent], axis=1), q_latent

    def attend_to_latents(
        self, of_heads: jax.Array, key: jax.Array, kv: KVPages, params: Params, index: jax.Array, layout: TokenLayout,
        backends: Backends, constants: AttentionConstants,
    ) -> tuple[jax.Array, KVPages]:  # fmt: skip
        """As `attend`, of what `queries_and_key` and `indexed` make."""
        sizes, num_tokens, heads = self.config.latent, of_heads.shape[0], self.config.num_heads
        joined = jnp.concatenate([of_heads.reshape(num_tokens, -1), key], axis=1)
        mixed, kv = backends.attention(self.attention_input(joined, layout), kv, index, layout, constants)
        latents = mixed.reshape(num_tokens, heads, -1)[..., sizes.rope_dim : sizes.page_dim].reshape(num_tokens, -1)
        values = self._by_head(latents, params["value_up"], index, layout, backends.products)
        return values.reshape(num_tokens, -1), kv

    def indexed(
        self, of_heads: jax.Array, key: jax.Array, inputs: tuple[jax.Array, jax.Array], params: Params,
        index: jax.Array, layout: TokenLayout, products: Products, constants: AttentionConstants,
    ) -> tuple[jax.Array, jax.Array, AttentionConstants]:  # fmt: skip
        """Queries, key and constants with what an index needs that picks tokens, where the architecture has one.

        Args:
            of_heads: [num_tokens, num_heads, page_dim].
            key: [num_tokens, page_dim], what goes to the pages.
            inputs: the residual stream, and the latent of queries before its norm.
        """
        return of_heads, key, constants

    def _by_head(
        self, x: jax.Array, weights: jax.Array, index: jax.Array, layout: TokenLayout, products: Products
    ) -> jax.Array:
        """Each head's features multiplied by a matrix of its own, [num_tokens, num_heads, outputs]."""
        heads = self.config.num_heads

        def head(number: jax.Array, features: jax.Array) -> jax.Array:
            return products.norm_product(features, None, weights, index * heads + number, layout)

        by_head = jnp.swapaxes(x.reshape(x.shape[0], heads, -1), 0, 1)
        made: jax.Array = lax.map(lambda pair: head(*pair), (jnp.arange(heads, dtype=jnp.int32), by_head))
        return jnp.swapaxes(made, 0, 1)

    def _latent_norm(self, params: Params, leaf: str) -> Norm:
        return Norm(params[leaf], LATENT_EPSILON)
