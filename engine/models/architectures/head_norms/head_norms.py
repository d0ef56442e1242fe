"""LayerNorms of queries and keys whose weights are of each head, as of Command R+ and StableLM 2 12B."""

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp

from cache.storage import KVPages
from engine.backends.base.backend import Backends
from engine.backends.base.even_sums import normed, summed
from engine.backends.base.norms import of_layer
from engine.backends.base.operands import AttentionConstants
from engine.backends.base.token_layout import TokenLayout
from engine.models.parts.decoder import Decoder
from engine.models.parts.decoder_config import DecoderConfig
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored
from engine.weights.tensors import AsVector, Transform, in_turn, paired_rows, rows

GGUF_NORM = "blk.0.attn_q_norm.weight"  # a tensor of GGUF files of models with such norms


@dataclass(frozen=True)
class HeadNormsConfig(DecoderConfig):
    """A decoder's, and whether queries and keys are normed."""

    has_head_norms: bool = False

    @property
    def norms_heads_outside_attention(self) -> bool:
        """As `ModelConfig.norms_heads_outside_attention`."""
        return self.has_head_norms


@dataclass(frozen=True)
class HeadNormsDecoder(Decoder):
    """A decoder that may norm each head of queries and keys before it is rotated."""

    config: HeadNormsConfig

    @classmethod
    def made(cls, usual: DecoderConfig, *, has_head_norms: bool) -> Self:
        return cls(HeadNormsConfig(**vars(usual), has_head_norms=has_head_norms))

    def head_norm_of_folder(self, kind: str, head: int, num_heads: int) -> tuple[str, Transform]:
        """The name of the weights of a head of queries ("q") or keys ("k") in a folder's layer, and their transform."""
        return f"self_attn.{kind}_norm", rows(head, head + 1, num_heads)

    def attention_leaves(self) -> list[Leaf]:
        config, leaves = self.config, super().attention_leaves()
        if not config.has_head_norms:
            return leaves
        num_heads = {"q": config.num_heads, "k": config.num_kv_heads}
        parts = tuple(
            self._head_norm_part(kind, head, count) for kind, count in num_heads.items() for head in range(count)
        )
        return [*leaves, Leaf("head_norms", LeafKind.VECTOR, parts, is_exact=True)]

    def _head_norm_part(self, kind: str, head: int, num_heads: int) -> Part:
        name, of_folder = self.head_norm_of_folder(kind, head, num_heads)
        paired = (paired_rows(self.config.head_dim, self.config.rotary[0].rotary_dim),)
        in_folder, in_gguf = (
            in_turn(taken, AsVector, *(paired if is_paired else ()))
            for taken, is_paired in (
                (of_folder, self.is_paired_in_folder), (rows(head, head + 1, num_heads), self.is_paired_in_gguf),
            )
        )  # fmt: skip
        stored = {
            "safetensors": Stored(f"model.layers.{{layer}}.{name}.weight", in_folder),
            "gguf": Stored(f"blk.{{layer}}.attn_{kind}_norm.weight", in_gguf),
        }
        return Part((self.config.head_dim,), stored)

    def attend(
        self, x: jax.Array, kv: KVPages, params: Params, index: jax.Array, layout: TokenLayout, backends: Backends,
        constants: AttentionConstants,
    ) -> tuple[jax.Array, KVPages]:  # fmt: skip
        if not self.config.has_head_norms:
            return super().attend(x, kv, params, index, layout, backends, constants)
        norm = self.norm(params, "attention_norm")
        qkv = backends.products.norm_product(x, norm, params["qkv"], index, layout, bias=params.get("qkv_bias"))
        return backends.attention(self._normed(qkv, params, index), kv, index, layout, constants)

    def _normed(self, qkv: jax.Array, params: Params, index: jax.Array) -> jax.Array:
        config, size = self.config, self.config.q_size + self.config.kv_size
        weights = of_layer(params["head_norms"], index).reshape(-1, config.head_dim)
        heads = qkv[:, :size].reshape(len(qkv), -1, config.head_dim).astype(jnp.float32)
        centred = heads - summed(heads) / config.head_dim
        made = normed(centred, weights, config.rms_norm_eps).reshape(len(qkv), size).astype(qkv.dtype)
        return jnp.concatenate([made, qkv[:, size:]], axis=1)
