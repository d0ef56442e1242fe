"""The Gemma 4 architecture (Gemma Team, "Gemma 4", 2026), text only."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.storage import KVPages
from engine.backends.base.backend import Backends, Products
from engine.backends.base.even_sums import multiplied, normed
from engine.backends.base.norms import of_layer
from engine.backends.base.operands import AttentionConstants, Norm
from engine.backends.base.token_layout import TokenLayout
from engine.models.architectures.gemma4.config import Gemma4Config, read_folder, read_gguf
from engine.models.architectures.gemma4.experts import NORMS, expert_leaves, with_experts
from engine.models.parts.decoder import Decoder, Names, in_layers, single
from engine.models.parts.hybrids.layers import Run, through_layers
from engine.models.parts.model import Model
from engine.models.parts.rotary import rotation_tables
from engine.models.parts.routing import Routing
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split, Stored, with_folder_prefixes

_USUAL_PREFIX = "model."
_PREFIX_WITH_PICTURES = "model.language_model."
_OF_SHARED = re.compile(r"model\.(?:language_model\.)?layers\.(\d+)\.self_attn\.(?:k_proj|v_proj|k_norm|v_norm)\..*")
_KINDS = {False: "local", True: "full"}  # of layers, in the names of leaves: with a window, or without


class LayerKind(NamedTuple):
    """What a layer's program depends on."""

    is_full: bool  # whether it sees all
    is_shared: bool  # whether it reads the keys and values of another
    is_sparse: bool = False  # whether most of its gates are 0, as in Gemma 3n


class Step(NamedTuple):
    """What all layers of a step read."""

    params: Params
    layout: TokenLayout
    backends: Backends
    constants: AttentionConstants
    by_layer: jax.Array | None  # [num_tokens, num_layers, layer_size]: what each layer adds of the tokens themselves


class Stream(NamedTuple):
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
    # Of a folder's tensors; it says nothing about the model itself.
    folder_prefix: str = field(default=_USUAL_PREFIX, compare=False)

    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("input_layernorm", "attn_norm"),
        "attention_output_norm": ("post_attention_layernorm", "post_attention_norm"),
        "mlp_norm": ("pre_feedforward_layernorm", "ffn_norm"),
        "down_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
    }
    # The tensors that read pictures and sounds are left where they are.
    derived_tensors = re.compile(
        Model.derived_tensors.pattern + r"|(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio)\..*"
    )

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of transformers' class for text, or those of the text in its class with pictures."""
        text = config.table("text_config")
        made = cls.read_text(config if text is None else text, tensor_names)
        return cls(made, _USUAL_PREFIX if text is None else _PREFIX_WITH_PICTURES)

    @staticmethod
    def read_text(config: JsonFile, tensor_names: Set[str]) -> Gemma4Config:
        """Reads the fields of transformers' class for text; raises ModelError."""
        return read_folder(config, tensor_names)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(read_gguf(file))

    def leaves_out(self, tensor_name: str) -> bool:
        """Also the keys and values of layers that share those of others."""
        found = _OF_SHARED.fullmatch(tensor_name)
        is_of_shared = found is not None and int(found[1]) >= self.config.num_paged_layers
        return is_of_shared or super().leaves_out(tensor_name)

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that the folder has for them."""
        leaves = (*super().leaves(), *self.layer_leaves())
        return with_folder_prefixes(leaves, {_USUAL_PREFIX: self.folder_prefix})

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

    def layer_leaves(self) -> list[Leaf]:
        """Of the embeddings by layer, and of what multiplies a layer's result."""
        scalar = Part(
            (1,),
            {
                "safetensors": Stored("model.layers.{layer}.layer_scalar"),
                "gguf": Stored("blk.{layer}.layer_output_scale.weight"),
            },
        )
        scale = Leaf("layer_scale", LeafKind.VECTOR, (scalar,), is_exact=True)
        return [scale, *(self.input_leaves(self.config.vocab_size) if self.config.layer_size else [])]

    def input_leaves(self, vocab_size: int) -> list[Leaf]:
        """Of the embeddings by layer, for so many tokens, and of what becomes of them."""
        config, hidden, size = self.config, self.config.hidden_size, self.config.layer_size
        all_layers = config.num_layers * size
        embedding = single((vocab_size, all_layers), ("model.embed_tokens_per_layer", "per_layer_token_embd"))
        projection = single((all_layers, hidden), ("model.per_layer_model_projection", "per_layer_model_proj"))
        norm_names = ("model.per_layer_projection_norm", "per_layer_proj_norm")
        gate = in_layers((size, hidden), ("per_layer_input_gate", "inp_gate"))
        output = in_layers((hidden, size), ("per_layer_projection", "proj"))
        return [
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
        """As `Decoder.forward`; layers come in runs of a pattern, as `through_layers` finds them."""
        config = self.config
        x, layout, pictures = self.embed_with_pictures(params, tokens, kv, layout, backends.products)
        if pictures is not None:
            tokens = pictures.text  # the embeddings by layer of a picture's tokens are those of padding, token 0
        constants = AttentionConstants(
            num_heads=config.num_heads,
            scale=config.attention_scale,
            rotations=rotation_tables(layout.positions, config.rotary),
            tables=np.array(config.tables, np.int32),
            windows=np.array(config.windows, np.int32),
        )
        by_layer = self.inputs_by_layer(x, params, tokens, layout, backends.products) if config.layer_size else None
        step = Step(params, layout, backends, constants, by_layer)
        kinds = self.kinds

        def run_pattern(run: Run, index: jax.Array, stream: Stream) -> Stream:
            pattern = kinds[run.first : run.first + run.length]
            for offset, kind in enumerate(pattern):
                before = _count(kinds[: run.first + offset], kind) + index * _count(pattern, kind)
                stream = self.layer(stream, kind, run.first + offset + index * run.length, before, step)
            return stream

        none = jnp.zeros((len(tokens), 2 * config.kv_size), x.dtype)
        stream = through_layers(kinds, run_pattern, Stream(self.begun(x, step), kv, none, none))
        return self.ended(stream.x, step), stream.kv

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kind of each layer."""
        config = self.config
        return tuple(
            LayerKind(is_full, layer >= config.num_paged_layers) for layer, is_full in enumerate(config.is_full)
        )

    def begun(self, x: jax.Array, step: Step) -> jax.Array:
        """What the first layer reads of the embedded tokens."""
        return x

    def ended(self, x: jax.Array, step: Step) -> jax.Array:
        """The hidden states that the last layer's result makes."""
        return x

    def layer(self, stream: Stream, kind: LayerKind, layer: jax.Array, place: jax.Array, step: Step) -> Stream:
        """After a layer, which has a place among those that see all, or those that do not."""
        stream = self.attended(stream, kind, layer, place, step)
        x = self.mixed_block(stream.x, kind, layer, step)
        if step.by_layer is not None:
            x = self._with_input(x, step.by_layer, layer, step)
        return stream._replace(x=(x * of_layer(step.params["layer_scale"], layer)).astype(x.dtype))

    def inputs_by_layer(
        self, x: jax.Array, params: Params, tokens: jax.Array, layout: TokenLayout, products: Products
    ) -> jax.Array:
        """What each layer adds of the tokens themselves, [num_tokens, num_layers, layer_size]."""
        config, shape = self.config, (len(tokens), self.config.num_layers, self.config.layer_size)
        embedded = products.embed(params["layer_embedding"], tokens, layout, scale=config.layer_size**0.5)
        projected = products.norm_product(x, None, params["layer_projection"], jnp.int32(0), layout)
        projected = (projected * config.hidden_size**-0.5).reshape(shape)
        projected = normed(projected, None, config.rms_norm_eps)
        projected = multiplied(projected, params["layer_projection_norm"][0])
        made: jax.Array = ((projected + embedded.reshape(shape)) * 2.0**-0.5).astype(x.dtype)
        return made

    def attended(self, stream: Stream, kind: LayerKind, layer: jax.Array, place: jax.Array, step: Step) -> Stream:
        """After attention, of a layer with a place as in `layer`."""
        params, layout, backends, constants, _ = step
        config, products, (x, kv, *_) = self.config, backends.products, stream
        is_full, page = kind.is_full, layer
        name, heads = _KINDS[is_full], config.heads(is_full=is_full)
        inputs = products.norm(x, self.norm_of(params, "attention_norm"), layer, layout)
        q = products.norm_product(inputs, None, params[f"q_{name}"], place, layout)
        q = normed(
            q.reshape(len(x), config.num_heads, -1), of_layer(params[f"q_norm_{name}"], place), config.rms_norm_eps
        )
        if kind.is_shared:
            # They are written once more where they are, with the same values.
            page = jnp.int32(config.layers_of(is_full=is_full, has_pages=True)[-1])
        else:
            made = products.norm_product(inputs, None, params[f"kv_{name}"], place, layout)
            k = made[:, : heads.num_kv_heads * heads.head_dim].reshape(len(x), heads.num_kv_heads, -1)
            v = made[:, -heads.num_kv_heads * heads.head_dim :].reshape(k.shape)
            k = normed(k, of_layer(params[f"k_norm_{name}"], place), config.rms_norm_eps)
            v = normed(v, None, config.rms_norm_eps)
            v = jnp.pad(v, ((0, 0), (0, 0), (0, config.head_dim - heads.head_dim)))
            times = config.num_kv_heads // heads.num_kv_heads
            k, v = (jnp.repeat(each, times, axis=1).reshape(len(x), -1) for each in (self._widened(k), v))
            made = jnp.concatenate([k, v], axis=1).astype(x.dtype)
            stream = stream._replace(full=made) if is_full else stream._replace(local=made)
        shared = stream.full if is_full else stream.local
        qkv = jnp.concatenate([self._widened(q).reshape(len(x), -1).astype(x.dtype), shared], axis=1)
        # The tokens of a picture see those behind them only in layers with a window.
        seen = layout._replace(last_seen=None) if is_full else layout
        attended, kv = backends.attention(qkv, kv, page, seen, constants)
        attended = attended.reshape(len(x), config.num_heads, -1)[..., : heads.head_dim].reshape(len(x), -1)
        product = products.norm_product(attended, None, params[f"output_{name}"], place, layout)
        return stream._replace(x=self._plus_normed(x, product, "attention_output_norm", layer, step), kv=kv)

    def _widened(self, heads: jax.Array) -> jax.Array:
        """Heads as they are in pages, with zeros behind each half of their features."""
        missing = (self.config.head_dim - heads.shape[-1]) // 2
        halves = jnp.split(heads, 2, axis=-1)
        return jnp.concatenate([jnp.pad(half, ((0, 0), (0, 0), (0, missing))) for half in halves], axis=-1)

    def mixed_block(self, x: jax.Array, kind: LayerKind, layer: jax.Array, step: Step) -> jax.Array:
        """After the feed-forward block."""
        params, layout, products = step.params, step.layout, step.backends.products
        config, is_wide = self.config, kind.is_shared and bool(self.config.wide_size)
        prefix, place = ("wide_", layer - config.num_paged_layers) if is_wide else ("", layer)
        inputs = products.norm(x, self.norm_of(params, "mlp_norm"), layer, layout)
        mixed = products.norm_product(
            inputs, None, params[f"{prefix}gate_up"], place, layout, activation=config.activation, is_gated=True
        )
        product = products.norm_product(mixed, None, params[f"{prefix}down"], place, layout)
        if config.routing.num_experts:
            product = with_experts(x, product, config, params, layer, layout, products)
        return self._plus_normed(x, product, "down_norm", layer, step)

    def of_input(self, x: jax.Array, by_layer: jax.Array, layer: jax.Array, step: Step) -> jax.Array:
        """What a layer adds of the tokens themselves, with gates made of x."""
        params, layout, products = step.params, step.layout, step.backends.products
        own = lax.dynamic_index_in_dim(by_layer, layer, axis=1, keepdims=False)
        gate = products.norm_product(x, None, params["layer_gate"], layer, layout, activation=self.config.activation)
        product = products.norm_product((gate * own).astype(x.dtype), None, params["layer_output"], layer, layout)
        return products.norm(product, self.norm_of(params, "layer_output_norm"), layer, layout)

    def _with_input(self, x: jax.Array, by_layer: jax.Array, layer: jax.Array, step: Step) -> jax.Array:
        return (x + self.of_input(x, by_layer, layer, step)).astype(x.dtype)

    def _plus_normed(self, x: jax.Array, product: jax.Array, leaf: str, layer: jax.Array, step: Step) -> jax.Array:
        products = step.backends.products
        return (x + products.norm(product, self.norm_of(step.params, leaf), layer, step.layout)).astype(x.dtype)

    def norm_of(self, params: Params, leaf: str) -> Norm:
        return Norm(params[leaf], self.config.rms_norm_eps)


def _count(kinds: Sequence[LayerKind], kind: LayerKind) -> int:
    """How many layers see all, or have a window, as those of a kind do."""
    return sum(each.is_full == kind.is_full for each in kinds)
