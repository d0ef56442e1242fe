"""Encoders that descend from BERT: positions are learned or rotate, and norms stand behind the blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
from engine.backends.base.backend import Backends, Products
from engine.backends.base.operands import AttentionConstants, Norm, NormKind
from engine.backends.base.token_layout import SECOND, TokenLayout
from engine.interface.types import Pooling
from engine.models.parts.alibi import distance_slopes
from engine.models.parts.encoders.encoder_config import EncoderConfig
from engine.models.parts.model import Carry, Model, run_layers
from engine.models.parts.rotary import rotation_tables
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored

# Of a tensor: its name in a folder and in a GGUF file, without ".weight".
Names = tuple[str, str]


@dataclass(frozen=True)
class Encoder(Model):
    """Layers of attention to the whole text and a feed-forward block, each with a LayerNorm behind it."""

    config: EncoderConfig

    is_encoder: ClassVar[bool] = True
    may_be_int8: ClassVar[bool] = False  # its products, where nothing else is wanted
    layer_name: ClassVar[str] = "encoder.layer"  # in a folder, before the number of a layer
    # What a sentence encoder does not use: the pooler of the pre-training, and a constant of older releases.
    derived_tensors: ClassVar[re.Pattern[str]] = re.compile(
        r"(bert\.|roberta\.)?(embeddings\.(position_ids|token_type_ids)|pooler\.dense\.(weight|bias))"
    )

    @property
    def head_pooling(self) -> Pooling:
        return self.config.head_pooling

    def leaves(self) -> tuple[Leaf, ...]:
        config, hidden, inner = self.config, self.config.hidden_size, self.config.intermediate_size
        words = self._part((config.vocab_size, hidden), ("embeddings.word_embeddings", "token_embd"))
        num_positions = config.first_position + config.context_length
        positions = self._part((num_positions, hidden), ("embeddings.position_embeddings", "position_embd"))
        types = self._part((config.num_token_types, hidden), ("embeddings.token_type_embeddings", "token_types"))
        kinds = (("query", "q"), ("key", "k"), ("value", "v"))
        return (
            Leaf("embedding", LeafKind.EMBEDDING, (words,), is_per_layer=False),
            Leaf("positions", LeafKind.EMBEDDING, (positions,), is_per_layer=False),
            Leaf("token_types", LeafKind.VECTOR, (types,), is_per_layer=False),
            *self._norm("embedding_norm", ("embeddings.LayerNorm", "token_embd_norm"), is_per_layer=False),
            *self._product(
                "qkv", hidden, hidden, *((f"attention.self.{name}", f"attn_{short}") for name, short in kinds)
            ),
            *self._product("attention_output", hidden, hidden, ("attention.output.dense", "attn_output")),
            *self._norm("attention_norm", ("attention.output.LayerNorm", "attn_output_norm")),
            *self._product("up", inner, hidden, ("intermediate.dense", "ffn_up")),
            *self._product("down", hidden, inner, ("output.dense", "ffn_down")),
            *self._norm("mlp_norm", ("output.LayerNorm", "layer_output_norm")),
        )

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        """As `Model.forward`; the hidden states are normalised."""
        constants = self.attention_constants(layout)

        def layer(index: jax.Array, carry: Carry) -> Carry:
            x, kv = self.attend(index, carry, params, layout, backends, constants)
            return self.feed_forward(x, params, index, index, layout, backends.products), kv

        return run_layers(layer, self.config.num_layers, self.embedded(params, tokens, layout, backends), kv)

    def attend(
        self, index: jax.Array, carry: Carry, params: Params, layout: TokenLayout, backends: Backends,
        constants: AttentionConstants,
    ) -> Carry:  # fmt: skip
        """What a layer's feed-forward block reads, and kv."""
        (x, kv), products = carry, backends.products
        qkv = products.norm_product(x, None, params["qkv"], index, layout, bias=params.get("qkv_bias"))
        attended, kv = backends.attention(qkv, kv, index, layout, constants)
        x = products.add_product(
            x, attended, params["attention_output"], index, layout, bias=params.get("attention_output_bias")
        )
        return products.norm(x, self.norm_of(params, "attention_norm"), index, layout), kv

    def feed_forward(
        self, x: jax.Array, params: Params, index: jax.Array, place: jax.Array, layout: TokenLayout, products: Products
    ) -> jax.Array:
        """What a layer makes of that; it has a place among those that have such a block."""
        config = self.config
        inner = products.norm_product(
            x, None, params["up"], place, layout,
            bias=params.get("up_bias"), activation=config.activation, is_gated=config.is_gated,
        )  # fmt: skip
        x = products.add_product(x, inner, params["down"], place, layout, bias=params.get("down_bias"))
        return products.norm(x, self.norm_of(params, "mlp_norm"), index, layout)

    def attention_constants(self, layout: TokenLayout) -> AttentionConstants:
        config, of_layers = self.config, self.config.num_layers
        return AttentionConstants(
            num_heads=config.num_heads,
            scale=config.head_dim**-0.5,
            rotations=rotation_tables(layout.positions, config.rotary),
            tables=np.array(config.tables or (-1,) * of_layers, np.int32),
            windows=np.array(config.windows or (0,) * of_layers, np.int32),
            is_causal=False,
            distance_slopes=np.array(distance_slopes(config.num_heads), np.float32) if config.has_alibi else None,
        )

    def embedded(self, params: Params, tokens: jax.Array, layout: TokenLayout, backends: Backends) -> jax.Array:
        """The sums of what words, positions and texts of a pair are embedded as, normed."""
        products, config = backends.products, self.config
        words = products.embed(params["embedding"], tokens, layout)
        if "positions" in params:
            words += products.embed(params["positions"], layout.positions + config.first_position, layout)
        types = params["token_types"][0].astype(words.dtype)  # [hidden, num_token_types]
        first = types[:, 0]
        if config.num_token_types > 1:
            second_start = jnp.repeat(layout.rows[:, SECOND], tokens.shape[0] // layout.num_tiles)
            is_second = (second_start > 0) & (layout.positions >= second_start)
            of_type = jnp.where(is_second[:, None], types[:, 1], first)
        else:
            of_type = first
        return products.norm(words + of_type, self.norm_of(params, "embedding_norm"), jnp.int32(0), layout)

    def logits(self, params: Params, hidden: jax.Array, sampled: jax.Array, backends: Backends) -> jax.Array:
        raise NotImplementedError("an encoder has no logits")

    def states(self, params: Params, hidden: jax.Array, tokens: jax.Array, backends: Backends) -> jax.Array:
        return hidden[tokens]

    def all_states(self, params: Params, hidden: jax.Array, backends: Backends) -> jax.Array:
        return hidden

    def norm_of(self, params: Params, leaf: str) -> Norm:
        return Norm(params[leaf], self.config.layer_norm_eps, NormKind.LAYER, params.get(f"{leaf}_bias"))

    def _norm(self, leaf: str, names: Names, *, is_per_layer: bool = True) -> list[Leaf]:
        size = (self.config.hidden_size,)
        part = self._in_layers if is_per_layer else self._part
        return [
            Leaf(leaf, LeafKind.VECTOR, (part(size, names),), is_per_layer=is_per_layer),
            Leaf(f"{leaf}_bias", LeafKind.VECTOR, (part(size, names, "bias"),), is_per_layer=is_per_layer),
        ]

    def _product(
        self, leaf: str, outputs: int, inputs: int, *names: Names, kind: LeafKind = LeafKind.MATRIX
    ) -> list[Leaf]:
        """A matrix of each layer, perhaps with biases, joined of one or several."""
        matrices = tuple(self._in_layers((outputs, inputs), each) for each in names)
        leaves = [Leaf(leaf, kind, matrices, may_be_int8=self.may_be_int8)]
        if self.config.has_biases:
            biases = tuple(self._in_layers((outputs,), each, "bias") for each in names)
            leaves.append(Leaf(f"{leaf}_bias", LeafKind.VECTOR, biases))
        return leaves

    def _in_layers(self, shape: tuple[int, ...], names: Names, suffix: str = "weight") -> Part:
        return self._part(shape, (f"{self.layer_name}.{{layer}}.{names[0]}", f"blk.{{layer}}.{names[1]}"), suffix)

    def _part(self, shape: tuple[int, ...], names: Names, suffix: str = "weight") -> Part:
        in_folder, in_gguf = names
        return Part(
            shape,
            {
                "safetensors": Stored(f"{self.config.prefix}{in_folder}.{suffix}"),
                "gguf": Stored(f"{in_gguf}.{suffix}"),
            },
        )
