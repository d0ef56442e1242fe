"""What reads text in the Gemma 4 architecture (Gemma Team, "Gemma 4", 2026)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.storage import KVPages
from engine.backends.base.backend import Backends, Products
from engine.backends.base.norms import of_layer
from engine.backends.base.operands import AttentionConstants, Norm
from engine.backends.base.token_layout import TokenLayout
from engine.models.architectures.gemma4.config import Gemma4Config, read_gguf
from engine.models.architectures.gemma4.experts import NORMS, expert_leaves, with_experts
from engine.models.parts.decoder import Decoder, Names, in_layers, single
from engine.models.parts.hybrids.layers import Run, runs_of
from engine.models.parts.routing import Routing
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split, Stored

_OF_SHARED = re.compile(r"model\.(?:language_model\.)?layers\.(\d+)\.self_attn\.(?:k_proj|v_proj|k_norm|v_norm)\..*")
_KINDS = {False: "local", True: "full"}  # of layers, in the names of leaves: with a window, or without


class _Stream(NamedTuple):
    """What layers hand on: the residual stream, pages, and the keys and values that each kind of layer made last."""

    x: jax.Array
    kv: KVPages
    local: jax.Array  # [num_tokens, 2 * num_kv_heads * head_dim], as they go into attention
    full: jax.Array


@dataclass(frozen=True)
class Gemma4(Decoder):
    """Heads of two sizes, last layers that share keys and values, and embeddings of tokens for each layer."""

    config: Gemma4Config
    can_be_split = False
    takes_adapters = False  # until it is tried

    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("input_layernorm", "attn_norm"),
        "attention_output_norm": ("post_attention_layernorm", "post_attention_norm"),
        "mlp_norm": ("pre_feedforward_layernorm", "ffn_norm"),
        "down_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
    }

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(read_gguf(file))

    def leaves_out(self, tensor_name: str) -> bool:
        """Also the keys and values of layers that share those of others."""
        found = _OF_SHARED.fullmatch(tensor_name)
        is_of_shared = found is not None and int(found[1]) >= self.config.num_paged_layers
        return is_of_shared or super().leaves_out(tensor_name)

    def leaves(self) -> tuple[Leaf, ...]:
        return (*super().leaves(), *self._layer_leaves())

    def norm_names(self) -> Mapping[str, Names]:
        return {**self.norms, **NORMS} if self.config.routing.num_experts else self.norms

    def attention_leaves(self) -> list[Leaf]:
        config, hidden = self.config, self.config.hidden_size
        leaves = []
        for is_full, kind in _KINDS.items():
            heads = config.heads(is_full=is_full)
            q_size, kv_size = config.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
            makes_values = not (is_full and config.keys_are_values)
            kv = [self._matrix((kv_size, hidden), each) for each in ("k", *(("v",) if makes_values else ()))]
            output = in_layers((hidden, q_size), self.attention_output_names)
            for has_pages, of_kind in {
                False: [
                    Leaf(f"q_{kind}", LeafKind.MATRIX, (self._matrix((q_size, hidden), "q"),)),
                    Leaf(f"output_{kind}", LeafKind.MATRIX, (output,)),
                    *self.norm_leaves(f"q_norm_{kind}", heads.head_dim, self.query_key_norm_names["q"]),
                ],
                True: [
                    Leaf(f"kv_{kind}", LeafKind.MATRIX, tuple(kv)),
                    *self.norm_leaves(f"k_norm_{kind}", heads.head_dim, self.query_key_norm_names["k"]),
                ],
            }.items():
                layers = config.layers_of(is_full=is_full, has_pages=has_pages)
                if layers:
                    leaves += [replace(leaf, layers=layers) for leaf in of_kind]
        return leaves

    def _matrix(self, shape: tuple[int, int], kind: str) -> Part:
        return in_layers(shape, (f"self_attn.{kind}_proj", f"attn_{kind}"))

    def feed_forward_leaves(self) -> list[Leaf]:
        config, leaves = self.config, super().feed_forward_leaves()
        experts = expert_leaves(config) if config.routing.num_experts else []
        if not config.wide_size:
            return [*leaves, *experts]
        others = replace(
            self, config=replace(config, intermediate_size=config.wide_size, wide_size=0, routing=Routing())
        )
        first = config.num_paged_layers
        return [
            *(replace(leaf, layers=tuple(range(first))) for leaf in leaves),
            *(
                replace(leaf, name=f"wide_{leaf.name}", layers=tuple(range(first, config.num_layers)))
                for leaf in others.feed_forward_leaves()
            ),
            *experts,
        ]

    def _layer_leaves(self) -> list[Leaf]:
        """Of the embeddings by layer, and of what multiplies a layer's result."""
        config, hidden, size = self.config, self.config.hidden_size, self.config.layer_size
        scalar = Part(
            (1,),
            {
                "safetensors": Stored("model.layers.{layer}.layer_scalar"),
                "gguf": Stored("blk.{layer}.layer_output_scale.weight"),
            },
        )
        leaves = [Leaf("layer_scale", LeafKind.VECTOR, (scalar,), is_exact=True)]
        if not size:
            return leaves
        all_layers = config.num_layers * size
        embedding = single((config.vocab_size, all_layers), ("model.embed_tokens_per_layer", "per_layer_token_embd"))
        projection = single((all_layers, hidden), ("model.per_layer_model_projection", "per_layer_model_proj"))
        norm_names = ("model.per_layer_projection_norm", "per_layer_proj_norm")
        gate = in_layers((size, hidden), ("per_layer_input_gate", "inp_gate"))
        output = in_layers((hidden, size), ("per_layer_projection", "proj"))
        return [
            *leaves,
            Leaf("layer_embedding", LeafKind.EMBEDDING, (embedding,), Split.OUTPUTS, is_per_layer=False),
            Leaf("layer_projection", LeafKind.MATRIX, (projection,), is_per_layer=False),
            *self.norm_leaves("layer_projection_norm", size, norm_names, is_per_layer=False),
            Leaf("layer_gate", LeafKind.MATRIX, (gate,)),
            Leaf("layer_output", LeafKind.MATRIX, (output,)),
            *self.norm_leaves("layer_output_norm", hidden, ("post_per_layer_input_norm", "post_norm")),
        ]

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        """As `Decoder.forward`; layers come in runs of a pattern, as `runs_of` finds them."""
        config = self.config
        x, layout, pictures = self.embed_with_pictures(params, tokens, kv, layout, backends.products)
        if pictures is not None:
            tokens = pictures.text  # the embeddings by layer of a picture's tokens are those of padding, token 0
        constants = AttentionConstants(
            num_heads=config.num_heads,
            scale=config.attention_scale,
            rotations=self.rotations(layout),
            tables=np.array(config.tables, np.int32),
            windows=np.array(config.windows, np.int32),
        )
        by_layer = self._inputs_by_layer(x, params, tokens, layout, backends.products) if config.layer_size else None
        shares = [layer >= config.num_paged_layers for layer in range(config.num_layers)]
        kinds = tuple(zip(config.is_full, shares, strict=True))

        def run_pattern(run: Run, index: jax.Array, stream: _Stream) -> _Stream:
            pattern = kinds[run.first : run.first + run.length]
            for offset, (is_full, is_shared) in enumerate(pattern):
                before = _count(kinds[: run.first + offset], is_full) + index * _count(pattern, is_full)
                layer = run.first + offset + index * run.length
                stream = self._attended(stream, is_full, is_shared, layer, before, params, layout, backends, constants)
                x = self._mixed(stream.x, is_shared, layer, params, layout, backends.products)
                if by_layer is not None:
                    x = self._with_input(x, by_layer, layer, params, layout, backends.products)
                stream = stream._replace(x=(x * of_layer(params["layer_scale"], layer)).astype(x.dtype))
            return stream

        none = jnp.zeros((len(tokens), 2 * config.kv_size), x.dtype)
        stream = _Stream(x, kv, none, none)
        for run in runs_of(kinds):
            body = partial(run_pattern, run)
            stream = body(jnp.int32(0), stream) if run.times == 1 else lax.fori_loop(0, run.times, body, stream)
        return stream.x, stream.kv

    def _inputs_by_layer(
        self, x: jax.Array, params: Params, tokens: jax.Array, layout: TokenLayout, products: Products
    ) -> jax.Array:
        """What each layer adds of the tokens themselves, [num_tokens, num_layers, layer_size]."""
        config, shape = self.config, (len(tokens), self.config.num_layers, self.config.layer_size)
        embedded = products.embed(params["layer_embedding"], tokens, layout, scale=config.layer_size**0.5)
        projected = products.norm_product(x, None, params["layer_projection"], jnp.int32(0), layout)
        projected = (projected * config.hidden_size**-0.5).reshape(shape)
        projected = _normed(projected, params["layer_projection_norm"][0], config.rms_norm_eps)
        made: jax.Array = ((projected + embedded.reshape(shape)) * 2.0**-0.5).astype(x.dtype)
        return made

    def _attended(
        self, stream: _Stream, is_full: bool, is_shared: bool, layer: jax.Array, place: jax.Array, params: Params,
        layout: TokenLayout, backends: Backends, constants: AttentionConstants,
    ) -> _Stream:  # fmt: skip
        """After attention, of a layer with a place among those of its kind."""
        config, products, (x, kv, *_) = self.config, backends.products, stream
        kind, heads, page = _KINDS[is_full], config.heads(is_full=is_full), layer
        inputs = products.norm(x, self._norm_of(params, "attention_norm"), layer, layout)
        q = products.norm_product(inputs, None, params[f"q_{kind}"], place, layout)
        q = _normed(
            q.reshape(len(x), config.num_heads, -1), of_layer(params[f"q_norm_{kind}"], place), config.rms_norm_eps
        )
        if is_shared:
            # They are written once more where they are, with the same values.
            page = jnp.int32(config.layers_of(is_full=is_full, has_pages=True)[-1])
        else:
            made = products.norm_product(inputs, None, params[f"kv_{kind}"], place, layout)
            k = made[:, : heads.num_kv_heads * heads.head_dim].reshape(len(x), heads.num_kv_heads, -1)
            v = made[:, -heads.num_kv_heads * heads.head_dim :].reshape(k.shape)
            k = _normed(k, of_layer(params[f"k_norm_{kind}"], place), config.rms_norm_eps)
            v = _normed(v, None, config.rms_norm_eps)
            v = jnp.pad(v, ((0, 0), (0, 0), (0, config.head_dim - heads.head_dim)))
            times = config.num_kv_heads // heads.num_kv_heads
            k, v = (jnp.repeat(each, times, axis=1).reshape(len(x), -1) for each in (self._widened(k), v))
            made = jnp.concatenate([k, v], axis=1).astype(x.dtype)
            stream = stream._replace(full=made) if is_full else stream._replace(local=made)
        shared = stream.full if is_full else stream.local
        qkv = jnp.concatenate([self._widened(q).reshape(len(x), -1).astype(x.dtype), shared], axis=1)
        attended, kv = backends.attention(qkv, kv, page, layout, constants)
        attended = attended.reshape(len(x), config.num_heads, -1)[..., : heads.head_dim].reshape(len(x), -1)
        product = products.norm_product(attended, None, params[f"output_{kind}"], place, layout)
        return stream._replace(
            x=self._plus_normed(x, product, "attention_output_norm", layer, params, layout, products), kv=kv
        )

    def _widened(self, heads: jax.Array) -> jax.Array:
        """Heads as they are in pages, with zeros behind each half of their features."""
        missing = (self.config.head_dim - heads.shape[-1]) // 2
        halves = jnp.split(heads, 2, axis=-1)
        return jnp.concatenate([jnp.pad(half, ((0, 0), (0, 0), (0, missing))) for half in halves], axis=-1)

    def _mixed(
        self, x: jax.Array, is_shared: bool, layer: jax.Array, params: Params, layout: TokenLayout, products: Products
    ) -> jax.Array:
        """After the feed-forward block."""
        config, is_wide = self.config, is_shared and bool(self.config.wide_size)
        prefix, place = ("wide_", layer - config.num_paged_layers) if is_wide else ("", layer)
        inputs = products.norm(x, self._norm_of(params, "mlp_norm"), layer, layout)
        mixed = products.norm_product(
            inputs, None, params[f"{prefix}gate_up"], place, layout, activation=config.activation, is_gated=True
        )
        product = products.norm_product(mixed, None, params[f"{prefix}down"], place, layout)
        if config.routing.num_experts:
            product = with_experts(x, product, config, params, layer, layout, products)
        return self._plus_normed(x, product, "down_norm", layer, params, layout, products)

    def _with_input(
        self, x: jax.Array, by_layer: jax.Array, layer: jax.Array, params: Params, layout: TokenLayout,
        products: Products,
    ) -> jax.Array:  # fmt: skip
        """After what a layer adds of the tokens themselves."""
        own = lax.dynamic_index_in_dim(by_layer, layer, axis=1, keepdims=False)
        gate = products.norm_product(x, None, params["layer_gate"], layer, layout, activation=self.config.activation)
        product = products.norm_product((gate * own).astype(x.dtype), None, params["layer_output"], layer, layout)
        return self._plus_normed(x, product, "layer_output_norm", layer, params, layout, products)

    def _plus_normed(
        self, x: jax.Array, product: jax.Array, leaf: str, layer: jax.Array, params: Params, layout: TokenLayout,
        products: Products,
    ) -> jax.Array:  # fmt: skip
        return (x + products.norm(product, self._norm_of(params, leaf), layer, layout)).astype(x.dtype)

    def _norm_of(self, params: Params, leaf: str) -> Norm:
        return Norm(params[leaf], self.config.rms_norm_eps)


def _count(kinds: Sequence[tuple[bool, bool]], is_full: bool) -> int:
    """How many layers see all, or have a window."""
    return sum(kind[0] == is_full for kind in kinds)


def _normed(x: jax.Array, weights: jax.Array | None, epsilon: float) -> jax.Array:
    """An RMS norm over the last axis."""
    wide = x.astype(jnp.float32)
    made = wide * lax.rsqrt(_sum(wide * wide) / x.shape[-1] + epsilon)
    return made if weights is None else made * weights.astype(jnp.float32)


def _sum(x: jax.Array) -> jax.Array:
    """Over the last axis, in an order that does not depend on the shape of the step, as that of a reduction may."""
    while x.shape[-1] % 2 == 0:
        first, second = jnp.split(x, 2, axis=-1)
        x = first + second
    total = x[..., :1]
    for index in range(1, x.shape[-1]):
        total = total + x[..., index : index + 1]
    return total
