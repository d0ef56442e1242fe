"""The family of decoders that descend from Llama: what they share, and the ways in which they differ."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.storage import KVPages
from engine.backends.base.backend import Backends, Products
from engine.backends.base.operands import AttentionConstants, Norm, NormKind
from engine.backends.base.token_layout import TokenLayout, single_tokens
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.key_bias import has_common_bias, without_common_bias
from engine.models.parts.model import Carry, Model, run_layers
from engine.models.parts.picture_tokens import PictureTokens
from engine.models.parts.rotary import rotation_tables
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split, Stored
from engine.weights.tensors import Transform, paired_rows, rows

# From the residual stream before a feed-forward block to that behind it; the index is that of the layer.
FeedForward = Callable[[jax.Array, Params, jax.Array, TokenLayout, Products], jax.Array]

# Of a tensor: its name in a folder and in a GGUF file, within its layer if it has one, without ".weight".
Names = tuple[str, str]


class QueryKeyNorm(StrEnum):
    """Over what queries and keys are normed before they are rotated."""

    NONE = "none"
    HEAD = "head"  # each head by itself
    ALL = "all"  # all heads of a token at once


@dataclass(frozen=True)
class Decoder(Model):
    """Residual layers of attention and a feed-forward block."""

    config: DecoderConfig

    takes_adapters: ClassVar[bool] = True
    # The norms before a block, and those of what it adds; an architecture has some of them.
    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("input_layernorm", "attn_norm"),
        "mlp_norm": ("post_attention_layernorm", "ffn_norm"),
    }
    output_norm_names: ClassVar[Names] = ("model.norm", "output_norm")
    attention_output_names: ClassVar[Names] = ("self_attn.o_proj", "attn_output")
    has_output_bias: ClassVar[bool] = False  # of the matrix that makes logits
    model_type: ClassVar[str] = ""  # in `config.json`
    query_key_norm: ClassVar[QueryKeyNorm] = QueryKeyNorm.NONE
    query_key_norm_names: ClassVar[Mapping[str, Names]] = {
        "q": ("self_attn.q_norm", "attn_q_norm"),
        "k": ("self_attn.k_norm", "attn_k_norm"),
    }
    norm_kind: ClassVar[NormKind] = NormKind.RMS
    has_norm_bias: ClassVar[bool] = False
    # Whether folders and GGUF files store queries and keys for a rotation of adjacent features.
    is_paired_in_folder: ClassVar[bool] = False
    is_paired_in_gguf: ClassVar[bool] = False

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        return cls(folder_config.read_decoder(config, tensor_names, cls.model_type))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(gguf_config.read_decoder(file))

    def leaves(self) -> tuple[Leaf, ...]:
        config = self.config
        hidden, vocab = config.hidden_size, (config.vocab_size, config.hidden_size)
        embedding = single(vocab, ("model.embed_tokens", "token_embd"))
        leaves = [
            Leaf("embedding", LeafKind.EMBEDDING, (embedding,), Split.OUTPUTS, is_per_layer=False),
            *(part for leaf, names in self.norm_names().items() for part in self.norm_leaves(leaf, hidden, names)),
            *self.attention_leaves(),
            *self.feed_forward_leaves(),
            *self.norm_leaves("output_norm", hidden, self.output_norm_names, is_per_layer=False),
        ]
        if config.has_output:
            output = single(vocab, ("lm_head", "output"))
            leaves.append(Leaf("output", LeafKind.EMBEDDING, (output,), Split.OUTPUTS, is_per_layer=False))
        if self.has_output_bias:
            bias = single(vocab[:1], ("lm_head", "output"), suffix="bias")
            leaves.append(Leaf("output_bias", LeafKind.VECTOR, (bias,), Split.OUTPUTS, is_per_layer=False))
        return tuple(leaves)

    def norm_names(self) -> Mapping[str, Names]:
        """As `norms`, of this model."""
        return self.norms

    def attention_leaves(self) -> list[Leaf]:
        """Of queries, keys and values, their norms, and the product behind attention."""
        config, hidden = self.config, self.config.hidden_size
        output = in_layers((hidden, config.q_size), self.attention_output_names)
        leaves = [
            Leaf("qkv", LeafKind.MATRIX, self.qkv_parts(hidden), Split.HEADS),
            Leaf("attention_output", LeafKind.MATRIX, (output,), Split.INPUTS),
        ]
        if config.has_qkv_bias:
            leaves.append(Leaf("qkv_bias", LeafKind.VECTOR, self.qkv_parts(None), Split.HEADS))
        if config.has_attention_output_bias:
            bias = in_layers((hidden,), self.attention_output_names, suffix="bias")
            leaves.append(Leaf("attention_output_bias", LeafKind.VECTOR, (bias,)))
        if self.query_key_norm is not QueryKeyNorm.NONE:
            num_heads = {"q": config.num_heads, "k": config.num_kv_heads}
            for kind, heads in num_heads.items():
                size = config.head_dim * (heads if self.query_key_norm is QueryKeyNorm.ALL else 1)
                leaves += self.norm_leaves(f"{kind}_norm", size, self.query_key_norm_names[kind])
        return leaves

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """Queries, keys and values: matrices of so many inputs, or None: biases."""
        config = self.config
        paired = paired_rows(config.head_dim, config.rotary[0].rotary_dim) if config.rotary else None
        kinds = (("q", config.q_size, paired), ("k", config.kv_size, paired), ("v", config.kv_size, None))
        return tuple(
            in_layers(
                (size,) if inputs is None else (size, inputs),
                (f"self_attn.{kind}_proj", f"attn_{kind}"),
                suffix="bias" if inputs is None else "weight",
                folder_transform=transform if self.is_paired_in_folder else None,
                gguf_transform=transform if self.is_paired_in_gguf else None,
            )
            for kind, size, transform in kinds
        )

    def feed_forward_leaves(self) -> list[Leaf]:
        """The leaves of `feed_forward`."""
        config, hidden = self.config, self.config.hidden_size
        down = in_layers((hidden, config.intermediate_size), ("mlp.down_proj", "ffn_down"))
        leaves = [
            Leaf("gate_up", LeafKind.GATED, self.gate_up_parts(hidden), Split.OUTPUTS),
            Leaf("down", LeafKind.MATRIX, (down,), Split.INPUTS),
        ]
        if config.has_mlp_bias:
            bias = in_layers((hidden,), ("mlp.down_proj", "ffn_down"), suffix="bias")
            leaves.append(Leaf("gate_up_bias", LeafKind.VECTOR, self.gate_up_parts(None), Split.OUTPUTS))
            leaves.append(Leaf("down_bias", LeafKind.VECTOR, (bias,)))
        return leaves

    def gate_up_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """Gates and ups: matrices of so many inputs, or None: biases."""
        size = self.config.intermediate_size
        return tuple(
            in_layers(
                (size,) if inputs is None else (size, inputs),
                (f"mlp.{kind}_proj", f"ffn_{kind}"),
                suffix="bias" if inputs is None else "weight",
            )
            for kind in ("gate", "up")
        )

    def norm_leaves(self, leaf: str, size: int, names: Names, *, is_per_layer: bool = True) -> list[Leaf]:
        """The weights of a norm over `size` features, and its biases where the architecture has some."""
        parts = {leaf: self.norm_part(size, names, is_in_layers=is_per_layer)}
        if self.has_norm_bias:
            make = in_layers if is_per_layer else single
            parts[f"{leaf}_bias"] = make((size,), names, suffix="bias")
        return [Leaf(name, LeafKind.VECTOR, (part,), is_per_layer=is_per_layer) for name, part in parts.items()]

    def norm_part(self, size: int, names: Names, *, is_in_layers: bool = True) -> Part:
        """The weights of a norm over `size` features."""
        make = in_layers if is_in_layers else single
        return make((size,), names, folder_transform=self.norm_transform_of_folder())

    def norm_transform_of_folder(self) -> Transform | None:
        """The transform of every norm's weights in a folder; GGUF files have them as they are used."""
        return None

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        """As `Model.forward`; the hidden states are not yet normalised."""
        config, products = self.config, backends.products
        x, layout, pictures = self.embed_with_pictures(params, tokens, kv, layout, products)
        deep = None  # [num_deep, num_tokens, hidden], added behind the first layers
        if pictures is not None and kv.pictures is not None and self.encoder is not None and self.encoder.num_deep:
            deep = pictures.deep(kv.pictures, self.encoder.num_deep)
        constants = self.constants(params, layout)

        def layer(index: jax.Array, carry: Carry, *, feed_forward: FeedForward) -> Carry:
            x, kv = carry
            attended, kv = self.attend(x, kv, params, index, layout, backends, constants)
            if config.is_parallel:
                return self.side_by_side(x, attended, feed_forward, params, index, layout, products), kv
            x = self.added(x, attended, "attention_output", params, index, layout, products)
            return feed_forward(x, params, index, layout, products), kv

        def with_more(index: jax.Array, carry: Carry, *, feed_forward: FeedForward, more: jax.Array) -> Carry:
            x, kv = layer(index, carry, feed_forward=feed_forward)
            return x + lax.dynamic_index_in_dim(more, index, keepdims=False).astype(x.dtype), kv

        for layers, feed_forward in self.runs():
            run = partial(layer, feed_forward=feed_forward)
            if deep is not None and layers.start < len(deep):
                first, layers = layers[: len(deep) - layers.start], layers[len(deep) - layers.start :]
                run_first = partial(with_more, feed_forward=feed_forward, more=deep)
                x, kv = run_layers(run_first, len(first), x, kv, first=first.start)
            x, kv = run_layers(run, len(layers), x, kv, first=layers.start)
        return x, kv

    def side_by_side(
        self, x: jax.Array, attended: jax.Array, feed_forward: FeedForward, params: Params, index: jax.Array,
        layout: TokenLayout, products: Products,
    ) -> jax.Array:  # fmt: skip
        """The residual stream after both blocks of a layer, which read what it began with."""
        norm = self.norm(params, "mlp_norm") or self.norm(params, "attention_norm")
        mixed = self.mixed(x, norm, params, index, layout, products)
        x = self.added(x, attended, "attention_output", params, index, layout, products)
        return self.added(x, mixed, "down", params, index, layout, products)

    def constants(self, params: Params, layout: TokenLayout) -> AttentionConstants:
        """The constants of attention in a step."""
        config = self.config
        return AttentionConstants(
            num_heads=config.num_heads,
            scale=config.attention_scale,
            rotations=self.rotations(layout),
            tables=np.array(config.tables, np.int32),
            windows=np.array(config.windows, np.int32),
            softcap=config.attention_softcap,
            is_causal=not self.is_encoder,
            sinks=params.get("sinks"),
            distance_slopes=np.array(config.distance_slopes, np.float32) if config.distance_slopes else None,
            rounds_biases=config.rounds_biases,
            q_norm=self.norm(params, "q_norm"),
            k_norm=self.norm(params, "k_norm"),
        )

    def rotations(self, layout: TokenLayout) -> jax.Array:
        """The tables of angles in a step."""
        positions = layout.positions if layout.rope_positions is None else layout.rope_positions
        return rotation_tables(positions, self.config.rotary)

    def embed(self, params: Params, tokens: jax.Array, layout: TokenLayout, products: Products) -> jax.Array:
        """What the first layer reads of int32[num_tokens]: [num_tokens, hidden]."""
        return products.embed(params["embedding"], tokens, layout, scale=self.config.embedding_scale)

    def embed_with_pictures(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, products: Products
    ) -> tuple[jax.Array, TokenLayout, PictureTokens | None]:
        """As `embed`, with the tokens of pictures; what they may see is in the layout. None: the model sees none."""
        if kv.pictures is None or self.encoder is None:
            return self.embed(params, tokens, layout, products), layout, None
        pictures = PictureTokens(tokens, self.config.vocab_size)
        layout = pictures.layout(layout, self.encoder, kv.pictures)
        x = pictures.embedded(self.embed(params, pictures.text, layout, products), kv.pictures)
        return x, layout, pictures

    def runs(self) -> Sequence[tuple[range, FeedForward]]:
        """All layers, in runs of neighbours that have the same kind of feed-forward block."""
        return [(range(self.config.num_layers), self.feed_forward)]

    def attend(
        self, x: jax.Array, kv: KVPages, params: Params, index: jax.Array, layout: TokenLayout, backends: Backends,
        constants: AttentionConstants,
    ) -> tuple[jax.Array, KVPages]:  # fmt: skip
        """What the product behind attention reads of the residual stream, and kv."""
        norm = self.norm(params, "attention_norm")
        qkv = backends.products.norm_product(x, norm, params["qkv"], index, layout, bias=params.get("qkv_bias"))
        qkv, biases = self.attention_input(qkv, layout), params.get("qkv_bias")
        if kv.is_transformed and biases is not None and has_common_bias(constants):
            qkv = without_common_bias(qkv, biases, kv.num_heads, index, constants, self.config.rotary)
        return backends.attention(qkv, kv, index, layout, constants)

    def attention_input(self, qkv: jax.Array, layout: TokenLayout) -> jax.Array:
        """Queries, keys and values for attention, [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]."""
        limit = self.config.qkv_limit
        return jnp.clip(qkv, -limit, limit) if limit else qkv

    def feed_forward(
        self, x: jax.Array, params: Params, index: jax.Array, layout: TokenLayout, products: Products
    ) -> jax.Array:
        """The residual stream [num_tokens, hidden] after a layer's feed-forward block."""
        mixed = self.mixed(x, self.norm(params, "mlp_norm"), params, index, layout, products)
        return self.added(x, mixed, "down", params, index, layout, products)

    def mixed(
        self, x: jax.Array, norm: Norm | None, params: Params, index: jax.Array, layout: TokenLayout,
        products: Products,
    ) -> jax.Array:  # fmt: skip
        """The inner features of a feed-forward block, [num_tokens, intermediate_size], of what it norms."""
        return products.norm_product(
            x, norm, params["gate_up"], index, layout,
            bias=params.get("gate_up_bias"), activation=self.config.activation, is_gated=True,
        )  # fmt: skip

    def added(
        self, x: jax.Array, inner: jax.Array, leaf: str, params: Params, index: jax.Array, layout: TokenLayout,
        products: Products,
    ) -> jax.Array:  # fmt: skip
        """x plus the product of `inner` with a leaf, normed where the architecture norms the output of a block."""
        weights, bias, scale = params[leaf], params.get(f"{leaf}_bias"), self.config.residual_scale
        norm = self.norm(params, f"{leaf}_norm")
        if norm is None:
            return products.add_product(x, inner, weights, index, layout, bias=bias, scale=scale)
        product = products.norm_product(inner, None, weights, index, layout, bias=bias)
        product = products.norm(product, norm, index, layout)
        return x + (product if scale == 1.0 else product * scale)

    def logits(self, params: Params, hidden: jax.Array, sampled: jax.Array, backends: Backends) -> jax.Array:
        weights = params["output" if self.config.has_output else "embedding"]
        return backends.products.head_product(
            hidden, jnp.asarray(sampled), self.norm(params, "output_norm"), weights,
            bias=params.get("output_bias"), scale=self.config.logit_scale, softcap=self.config.logit_softcap,
        )  # fmt: skip

    def states(self, params: Params, hidden: jax.Array, tokens: jax.Array, backends: Backends) -> jax.Array:
        norm, states = self.norm(params, "output_norm"), hidden[tokens]
        return states if norm is None else backends.products.norm(states, norm, jnp.int32(0), single_tokens(tokens))

    def norm(self, params: Params, leaf: str) -> Norm | None:
        """The norm of a leaf, or None where the architecture has no such leaf."""
        if leaf not in params:
            return None
        return Norm(params[leaf], self.config.rms_norm_eps, self.norm_kind, params.get(f"{leaf}_bias"))


def in_layers(
    shape: tuple[int, ...], names: Names, *, suffix: str = "weight",
    folder_transform: Transform | None = None, gguf_transform: Transform | None = None,
) -> Part:  # fmt: skip
    """A tensor of each layer."""
    return _part(
        shape, f"model.layers.{{layer}}.{names[0]}.{suffix}", f"blk.{{layer}}.{names[1]}.{suffix}",
        folder_transform, gguf_transform,
    )  # fmt: skip


def single(
    shape: tuple[int, ...], names: Names, *, suffix: str = "weight", folder_transform: Transform | None = None
) -> Part:
    """A tensor outside the layers."""
    return _part(shape, f"{names[0]}.{suffix}", f"{names[1]}.{suffix}", folder_transform)


def joined(sizes: tuple[int, ...], inputs: int | None, names: Names) -> tuple[Part, ...]:
    """Parts of so many outputs each, which are joined in one tensor of each layer; no inputs: biases."""
    suffix, rest = ("bias", ()) if inputs is None else ("weight", (inputs,))
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    chosen = [rows(end - size, end, ends[-1]) for size, end in zip(sizes, ends, strict=True)]
    return tuple(
        in_layers((size, *rest), names, suffix=suffix, folder_transform=transform, gguf_transform=transform)
        for size, transform in zip(sizes, chosen, strict=True)
    )


def _part(
    shape: tuple[int, ...], folder_name: str, gguf_name: str,
    folder_transform: Transform | None = None, gguf_transform: Transform | None = None,
) -> Part:  # fmt: skip
    return Part(
        shape, {"safetensors": Stored(folder_name, folder_transform), "gguf": Stored(gguf_name, gguf_transform)}
    )
