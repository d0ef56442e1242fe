"""The family of decoders with gated delta-nets in most layers and gated attention in the others, such as Qwen3-Next."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.storage import KVPages
from engine.backends.base.backend import Backends, Products
from engine.backends.base.operands import AttentionConstants, GatedDelta, Norm
from engine.backends.base.token_layout import TokenLayout
from engine.models.parts.decoder import Decoder, Names, QueryKeyNorm, in_layers
from engine.models.parts.experts import ExpertsDecoder
from engine.models.parts.hybrids.delta_config import DeltaConfig
from engine.models.parts.model import Carry
from engine.models.parts.routed.joined_experts import with_joined_experts
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored
from engine.weights.tensors import NegativeExponential, OneMore, Squeezed, Transform, interleaved

# Of a delta-net's tensor: its name in a folder and its transform there, and the same of a GGUF file.
Source = tuple[str, Transform | None, str, Transform | None]


@dataclass(frozen=True)
class DeltaDecoder(ExpertsDecoder):
    """Layers of a gated delta-net or of gated attention, each with a dense block or experts behind it."""

    config: DeltaConfig
    takes_adapters = False  # parts of its layers are none of the products that adapters change
    # The formats of files in which an expert's gate and up are one tensor; they say nothing about the model itself.
    joined_experts: frozenset[str] = field(default=frozenset(), compare=False)

    norms: ClassVar[Mapping[str, Names]] = {"mlp_norm": ("post_attention_layernorm", "post_attention_norm")}
    query_key_norm = QueryKeyNorm.HEAD

    def norm_transform_of_folder(self) -> Transform | None:
        return OneMore

    def delta_sources(self) -> dict[str, Source]:
        """Where the products of a delta-net are: of "qkv", "z", "beta" and "alpha"."""
        return {
            "qkv": ("in_proj_qkv", None, "attn_qkv", None),
            "z": ("in_proj_z", None, "attn_gate", None),
            "beta": ("in_proj_b", None, "ssm_beta", None),
            "alpha": ("in_proj_a", None, "ssm_alpha", None),
        }

    def attention_leaves(self) -> list[Leaf]:
        """Of gated attention, and of the delta-nets of the other layers."""
        config = self.config
        norm = self.norm_part(config.hidden_size, ("input_layernorm", "attn_norm"))
        attention = [Leaf("attention_norm", LeafKind.VECTOR, (norm,)), *super().attention_leaves()]
        delta = [Leaf("delta_input_norm", LeafKind.VECTOR, (norm,)), *self.delta_leaves()]
        return [
            *(replace(leaf, layers=config.attention_layers) for leaf in attention),
            *(replace(leaf, layers=config.recurrent_layers) for leaf in delta),
        ]

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """Queries, keys, values, and the gates of the output, which files hold beside each head's queries."""
        config = self.config
        queries, keys, values = super().qkv_parts(inputs)
        takes = [interleaved(config.num_heads, (config.head_dim, config.head_dim), (part,)) for part in (0, 1)]
        queries, gates = (
            replace(queries, stored={name: replace(stored, transform=take) for name, stored in queries.stored.items()})
            for take in takes
        )
        return queries, keys, values, gates

    def delta_leaves(self) -> list[Leaf]:
        """Of the delta-nets, without norms before them."""
        hidden, delta = self.config.hidden_size, self.config.delta
        sources = self.delta_sources()

        def matrix(name: str, num_outputs: int) -> Part:
            folder, folder_transform, gguf, gguf_transform = sources[name]
            return in_layers(
                (num_outputs, hidden), (f"linear_attn.{folder}", gguf),
                folder_transform=folder_transform, gguf_transform=gguf_transform,
            )  # fmt: skip

        def stored(shape: tuple[int, ...], folder: str, transform: Transform | None, gguf: str) -> Part:
            return Part(
                shape,
                {
                    "safetensors": Stored(f"model.layers.{{layer}}.linear_attn.{folder}", transform),
                    "gguf": Stored(f"blk.{{layer}}.{gguf}"),
                },
            )

        vector, heads = LeafKind.VECTOR, (delta.num_heads,)
        convolution = stored((delta.num_channels, delta.kernel), "conv1d.weight", Squeezed, "ssm_conv1d.weight")
        out = in_layers((hidden, delta.value_size), ("linear_attn.out_proj", "ssm_out"))
        return [
            Leaf("delta_qkvz", LeafKind.MATRIX, (matrix("qkv", delta.num_channels), matrix("z", delta.value_size))),
            Leaf("delta_beta", LeafKind.MATRIX, (matrix("beta", delta.num_heads),), is_exact=True),
            Leaf("delta_alpha", LeafKind.MATRIX, (matrix("alpha", delta.num_heads),), is_exact=True),
            Leaf("delta_convolution", vector, (convolution,), is_exact=True),
            Leaf("delta_decay", vector, (stored(heads, "A_log", NegativeExponential, "ssm_a"),), is_exact=True),
            Leaf("delta_time_bias", vector, (stored(heads, "dt_bias", None, "ssm_dt.bias"),), is_exact=True),
            Leaf(
                "delta_norm",
                vector,
                (stored((delta.value_dim,), "norm.weight", None, "ssm_norm.weight"),),
                is_exact=True,
            ),
            Leaf("delta_out", LeafKind.MATRIX, (out,)),
        ]

    def expert_parts(self, hidden: int, inner: int) -> tuple[Part, Part, Part]:
        return with_joined_experts(super().expert_parts(hidden, inner), self.joined_experts, inner)

    def feed_forward_leaves(self) -> list[Leaf]:
        return super().feed_forward_leaves() if self.config.num_experts else Decoder.feed_forward_leaves(self)

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        """As `Decoder.forward`.

        Layers come in periods, such as three delta-nets and one layer of attention. A loop goes through the periods, in
        whose body each layer stands by itself: a branch in a loop over layers would copy the pages.
        """
        config = self.config
        x, layout, _ = self.embed_with_pictures(params, tokens, kv, layout, backends.products)
        attention = AttentionConstants(
            num_heads=config.num_heads,
            scale=config.attention_scale,
            rotations=self.rotations(layout),
            tables=np.array([config.tables[layer] for layer in config.attention_layers], np.int32),
            windows=np.zeros(config.num_paged_layers, np.int32),
            q_norm=self.norm(params, "q_norm"),
            k_norm=self.norm(params, "k_norm"),
        )
        delta = self.delta_constants(params)
        period = _period(config.is_recurrent)
        num_recurrent = sum(config.is_recurrent[:period])
        carry: Carry = (x, kv)

        def layers(first: jax.Array, round_index: jax.Array, kinds: tuple[bool, ...], carry: Carry) -> Carry:
            """Some layers from `first` on, behind so many whole periods."""
            recurrent, attending = round_index * num_recurrent, round_index * (period - num_recurrent)
            for offset, is_recurrent in enumerate(kinds):
                index = first + offset
                place = recurrent if is_recurrent else attending
                if is_recurrent:
                    carry = self._delta_layer(place, carry, params, layout, backends, delta)
                    recurrent = recurrent + 1
                else:
                    carry = self.attention_layer(place, carry, params, layout, backends, attention)
                    attending = attending + 1
                x, kv = carry
                carry = self.behind(is_recurrent, place, index, x, params, layout, backends.products), kv
            return carry

        num_rounds, rest = divmod(config.num_layers, period)
        kinds = config.is_recurrent[:period]
        carry = lax.fori_loop(0, num_rounds, lambda index, carry: layers(index * period, index, kinds, carry), carry)
        if rest:
            return layers(jnp.int32(num_rounds * period), jnp.int32(num_rounds), kinds[:rest], carry)
        return carry

    def delta_constants(self, params: Params) -> GatedDelta:
        """The sizes and weights of the delta-nets."""
        sizes = self.config.delta
        return GatedDelta(
            num_key_heads=sizes.num_key_heads, num_heads=sizes.num_heads,
            key_dim=sizes.key_dim, value_dim=sizes.value_dim,
            convolution=params["delta_convolution"], decay=params["delta_decay"], time_bias=params["delta_time_bias"],
            norm=Norm(params["delta_norm"], self.config.rms_norm_eps), is_tiled=sizes.is_tiled,
        )  # fmt: skip

    def _delta_layer(
        self, recurrent: jax.Array, carry: Carry, params: Params, layout: TokenLayout, backends: Backends,
        constants: GatedDelta,
    ) -> Carry:  # fmt: skip
        """The delta-net of a layer, `recurrent` among those that have one."""
        (x, kv), products = carry, backends.products
        norm = Norm(params["delta_input_norm"], self.config.rms_norm_eps)
        qkvz, beta, alpha = (
            products.norm_product(x, norm, params[name], recurrent, layout)
            for name in ("delta_qkvz", "delta_beta", "delta_alpha")
        )
        made, kv = backends.recurrence(qkvz, beta, alpha, kv, recurrent, layout, constants)
        return products.add_product(x, made, params["delta_out"], recurrent, layout), kv

    def attention_layer(
        self, attending: jax.Array, carry: Carry, params: Params, layout: TokenLayout, backends: Backends,
        constants: AttentionConstants,
    ) -> Carry:  # fmt: skip
        """The attention of a layer, `attending` among those that have one."""
        (x, kv), products, size = carry, backends.products, self.config.q_size
        mixed = products.norm_product(x, self.norm(params, "attention_norm"), params["qkv"], attending, layout)
        attended, kv = backends.attention(mixed[:, :-size], kv, attending, layout, constants)
        gated = (attended * jax.nn.sigmoid(mixed[:, -size:])).astype(x.dtype)
        return products.add_product(x, gated, params["attention_output"], attending, layout), kv

    def behind(
        self, is_recurrent: bool, place: jax.Array, index: jax.Array, x: jax.Array, params: Params,
        layout: TokenLayout, products: Products,
    ) -> jax.Array:  # fmt: skip
        """The residual stream after a layer's feed-forward block; the layer has a place among those of its kind."""
        return self.feed_forward(x, params, index, layout, products)

    def feed_forward(
        self, x: jax.Array, params: Params, index: jax.Array, layout: TokenLayout, products: Products,
        num_others: int | jax.Array = 0,
    ) -> jax.Array:  # fmt: skip
        if self.config.num_experts:
            return super().feed_forward(x, params, index, layout, products, num_others)
        return Decoder.feed_forward(self, x, params, index, layout, products)


def _period(kinds: tuple[bool, ...]) -> int:
    """The length of the shortest pattern that the kinds of layers repeat."""
    return next(n for n in range(1, len(kinds) + 1) if all(kind == kinds[i % n] for i, kind in enumerate(kinds)))
