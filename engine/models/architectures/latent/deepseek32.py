"""The architecture of DeepSeek-V3.2 (DeepSeek-AI, "DeepSeek-V3.2", 2025)."""

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from engine.backends.base.backend import Products
from engine.backends.base.operands import AttentionConstants, Norm, NormKind, TokenIndex
from engine.backends.base.token_layout import TokenLayout
from engine.models.architectures.latent.deepseek2 import DeepseekV3
from engine.models.parts.decoder import Names, in_layers
from engine.models.parts.routed.latent_config import MAX_LATENT, LatentConfig
from engine.weights.formats.fields import Fields
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split
from engine.weights.tensors import paired_rows

_NUM_PICKED, _NUM_HEADS, _SIZE = 2048, 64, 128  # of transformers' class, where a configuration leaves them out
_NORM_EPSILON = 1e-6  # of the keys; source: DeepSeek's code
_KEY_NORM: Names = ("self_attn.indexer.k_norm", "indexer.k_norm")


class Indexed(NamedTuple):
    """What the index makes of the tokens of a step in a layer."""

    queries: jax.Array  # [num_tokens, num_heads, size]
    weights: jax.Array  # float32[num_tokens, num_heads]
    keys: jax.Array  # [num_tokens, size]


class IndexSizes(NamedTuple):
    """The sizes of what picks the tokens that a query sees."""

    num_heads: int
    size: int  # features of its queries and keys
    num_picked: int


@dataclass(frozen=True, kw_only=True)
class Deepseek32Config(LatentConfig):
    """DeepSeek-V3's, whose pages hold the keys of the index behind latents."""

    index: IndexSizes
    is_indexed: bool = True  # whether contexts are longer than what the index picks; else it changes nothing

    @property
    def joined_outputs(self) -> dict[str, int]:
        """As `ModelConfig.joined_outputs`."""
        return {**super().joined_outputs, **({"keys of the index": self.index.size} if self.is_indexed else {})}


@dataclass(frozen=True)
class Deepseek32(DeepseekV3):
    """DeepSeek-V3's layers, in which an index picks the tokens that a query sees.

    It picks all of them in a context of at most `index_topk` tokens, for which it is left out.
    """

    config: Deepseek32Config

    model_type = "deepseek_v32"
    # Whether files have the index's queries and keys for a rotation of adjacent features.
    is_index_paired: ClassVar[bool] = False

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        made = super().from_folder(config, tensor_names)
        index = IndexSizes(
            num_heads=config.integer("index_n_heads", least=1, most=MAX_LATENT) or _NUM_HEADS,
            size=config.integer("index_head_dim", least=1, most=MAX_LATENT) or _SIZE,
            num_picked=config.integer("index_topk", least=2) or _NUM_PICKED,
        )
        return made._with_index(index, config, "index_head_dim")

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        fields, key = file.fields, "attention.indexer"
        index = IndexSizes(
            num_heads=fields.required_integer(f"{key}.head_count", least=1, most=MAX_LATENT),
            size=fields.required_integer(f"{key}.key_length", least=1, most=MAX_LATENT),
            num_picked=fields.required_integer(f"{key}.top_k", least=2),
        )
        return super().from_gguf(file)._with_index(index, fields, f"{key}.key_length")

    def _with_index(self, index: IndexSizes, fields: Fields, size_key: str) -> Self:
        """Raises ModelError if the index's keys are smaller than what is rotated of them, or there is no latent."""
        usual = self.config
        if index.size < usual.latent.rope_dim or not usual.latent.q_rank:
            raise fields.error(
                size_key, f"it must be at least {usual.latent.rope_dim}, of queries that are made of a latent"
            )
        config = Deepseek32Config(**vars(usual), index=index)
        return replace(self, config=replace(config, head_dim=usual.latent.page_dim + index.size))

    def laid_out_for(self, num_tokens: int) -> Self:
        config = self.config
        if num_tokens > config.index.num_picked:
            return self
        return replace(self, config=replace(config, is_indexed=False, head_dim=config.latent.page_dim))

    def attention_leaves(self) -> list[Leaf]:
        return [*super().attention_leaves(), *(self.index_leaves() if self.config.is_indexed else ())]

    def index_leaves(self) -> list[Leaf]:
        """Of the index, whose keys have a norm and a matrix of their own."""
        config, index = self.config, self.config.index
        hidden, size = config.hidden_size, index.size
        paired = paired_rows(size, config.latent.rope_dim) if self.is_index_paired else None

        def part(shape: tuple[int, ...], names: Names, suffix: str = "weight") -> Part:
            return in_layers(shape, names, suffix=suffix, folder_transform=paired, gguf_transform=paired)

        queries = ("self_attn.indexer.wq_b", "indexer.attn_q_b")
        key = part((size, hidden), ("self_attn.indexer.wk", "indexer.attn_k"))
        weights = in_layers((index.num_heads, hidden), ("self_attn.indexer.weights_proj", "indexer.proj"))
        return [
            Leaf("index_key", LeafKind.MATRIX, (key,)),
            Leaf("index_norm", LeafKind.VECTOR, (part((size,), _KEY_NORM),)),
            Leaf("index_norm_bias", LeafKind.VECTOR, (part((size,), _KEY_NORM, "bias"),)),
            Leaf(
                "index_queries", LeafKind.MATRIX, (part((index.num_heads * size, config.latent.q_rank), queries),),
                Split.REPLICATED,
            ),
            Leaf("index_weights", LeafKind.MATRIX, (weights,), is_exact=True),
        ]  # fmt: skip

    def indexed(
        self, of_heads: jax.Array, key: jax.Array, inputs: tuple[jax.Array, jax.Array], params: Params,
        index: jax.Array, layout: TokenLayout, products: Products, constants: AttentionConstants,
    ) -> tuple[jax.Array, jax.Array, AttentionConstants]:  # fmt: skip
        """As `LatentDecoder.indexed`."""
        if not self.config.is_indexed:
            return of_heads, key, constants
        made = self.index_of(inputs, params, index, layout, products, constants)
        return self.with_index(of_heads, key, made, constants)

    def index_of(
        self, inputs: tuple[jax.Array, jax.Array], params: Params, place: jax.Array, layout: TokenLayout,
        products: Products, constants: AttentionConstants,
    ) -> Indexed:  # fmt: skip
        """What the index makes of the inputs of `indexed`. The first features of queries and keys rotate by halves.

        Args:
            place: of the layer among those that have an index.
        """
        sizes, (x, q_latent) = self.config.index, inputs
        norm, q_norm = self.norms_of_index(params)
        keys = products.norm_product(x, norm, params["index_key"], place, layout)
        of_keys = Norm(params["index_norm"], _NORM_EPSILON, NormKind.LAYER, params["index_norm_bias"])
        keys = products.norm(keys, of_keys, place, layout)
        weights = products.norm_product(x, norm, params["index_weights"], place, layout).astype(jnp.float32)
        queries = products.norm_product(q_latent, q_norm, params["index_queries"], place, layout)
        queries = _rotated(queries.reshape(len(x), sizes.num_heads, sizes.size), constants.rotations[0])
        keys = _rotated(keys[:, None], constants.rotations[0])[:, 0]
        return Indexed(queries, weights * (sizes.size * sizes.num_heads) ** -0.5, keys)

    def norms_of_index(self, params: Params) -> tuple[Norm | None, Norm]:
        """Those of the residual stream and of the latent of queries, in the layers that have an index."""
        return self.norm(params, "attention_norm"), self._latent_norm(params, "query_norm")

    def with_index(
        self, of_heads: jax.Array, key: jax.Array, made: Indexed, constants: AttentionConstants
    ) -> tuple[jax.Array, jax.Array, AttentionConstants]:
        """As `indexed`, of what an index has made."""
        sizes = self.config.index
        of_heads = jnp.pad(of_heads, ((0, 0), (0, 0), (0, sizes.size)))
        key = jnp.concatenate([key, made.keys.astype(key.dtype)], axis=1)
        picks = TokenIndex(made.queries, made.weights, sizes.num_picked)
        return of_heads, key, replace(constants, index=picks)


def _rotated(x: jax.Array, rotations: jax.Array) -> jax.Array:
    """[num_tokens, num_heads, size], of which the first features are rotated (Su et al., "RoFormer", 2021)."""
    cos, sin = jnp.split(rotations[:, None], 2, axis=-1)
    first, second, rest = jnp.split(x.astype(jnp.float32), [cos.shape[-1], 2 * cos.shape[-1]], axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
    return turned.astype(x.dtype)
