"""The LFM2 architecture (Liquid AI, "LFM2 Technical Report", 2025): short gated convolutions and attention."""

import dataclasses
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from cache.states import StateArray
from cache.storage import KVPages
from engine.backends.base.backend import Backends
from engine.backends.base.operands import AttentionConstants, Convolution
from engine.backends.base.token_layout import TokenLayout
from engine.interface.errors import ModelError
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder, Names, QueryKeyNorm, in_layers
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.experts import ExpertsConfig, ExpertsDecoder
from engine.models.parts.hybrids.layers import Run, through_layers
from engine.models.parts.model import Carry
from engine.models.parts.rotary import rotation_tables
from engine.models.parts.routing import Routing, Scoring
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored, with_folder_names
from engine.weights.tensors import Squeezed

_DEFAULTS: dict[str, Any] = {"rope_theta": 1_000_000.0, "conv_L_cache": 3}  # source: transformers' Lfm2Config
_LARGEST_KERNEL = 64
_NUM_DENSE_LAYERS = 2  # where config.json says nothing; source: transformers' Lfm2MoeConfig
Kind = tuple[bool, bool]  # of a layer: whether it has a convolution, and whether a dense block in place of experts
# In the names of a folder's tensors, what stands for the usual names; in this order.
_FOLDER_NAMES = {
    ".mlp.": ".feed_forward.", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2",
    "q_norm": "q_layernorm", "k_norm": "k_layernorm",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Lfm2Config(ExpertsConfig):
    """A decoder's, some of whose layers have a convolution in place of attention; without experts where there are 0."""

    is_convolution: tuple[bool, ...]  # of each layer
    kernel: int  # tokens that a convolution sees, its own included
    has_convolution_bias: bool = False

    @property
    def convolution_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer in range(self.num_layers) if self.is_convolution[layer])

    @property
    def attention_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer in range(self.num_layers) if not self.is_convolution[layer])

    @property
    def num_paged_layers(self) -> int:
        return len(self.attention_layers)

    @property
    def states(self) -> tuple[StateArray, ...]:
        return (StateArray("inputs", len(self.convolution_layers), (self.kernel - 1, self.hidden_size)),)


@dataclass(frozen=True)
class Lfm2(ExpertsDecoder):
    """Layers of a short gated convolution or of attention, each with a dense block or experts behind it."""

    config: Lfm2Config

    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("operator_norm", "attn_norm"),
        "mlp_norm": ("ffn_norm", "ffn_norm"),
    }
    model_type = "lfm2"
    takes_adapters = False  # parts of its layers are none of the products that adapters change
    has_experts: ClassVar[bool] = False
    choice_bias_names = ("feed_forward.expert_bias", "exp_probs_b")
    output_norm_names = ("model.embedding_norm", "token_embd_norm")
    attention_output_names = ("self_attn.out_proj", "attn_output")
    query_key_norm = QueryKeyNorm.HEAD

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = _with_usual_names(config.with_defaults(_DEFAULTS))
        usual = folder_config.read_decoder(
            config, tensor_names, cls.model_type, epsilon_key="norm_eps", default_epsilon=1e-5, is_tied=True
        )
        made = _made(
            usual,
            is_convolution=_read_kinds(config, usual.num_layers),
            kernel=config.required_integer("conv_L_cache", least=2, most=_LARGEST_KERNEL),
            has_convolution_bias=folder_config.read_flag(config, "conv_bias", False),
        )
        if cls.has_experts:
            return cls(_with_experts(config, made))
        return cls(dataclasses.replace(made, intermediate_size=_adjusted(config, made.intermediate_size)))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        fields, usual = file.fields, gguf_config.read_decoder(file)
        has_pages = gguf_config.has_of_layers(file, "attention.head_count_kv", usual.num_layers)
        made = _made(
            usual,
            is_convolution=_both_kinds(tuple(not each for each in has_pages)),
            kernel=fields.required_integer("shortconv.l_cache", least=2, most=_LARGEST_KERNEL),
        )
        return cls(_with_experts_of_gguf(file, made) if cls.has_experts else made)

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that folders have for them."""
        return with_folder_names(super().leaves(), _FOLDER_NAMES)

    def attention_leaves(self) -> list[Leaf]:
        """Of attention, and of the convolutions of the other layers."""
        config = self.config
        return [
            *(dataclasses.replace(leaf, layers=config.attention_layers) for leaf in super().attention_leaves()),
            *(dataclasses.replace(leaf, layers=config.convolution_layers) for leaf in self._convolution_leaves()),
        ]

    def feed_forward_leaves(self) -> list[Leaf]:
        return super().feed_forward_leaves() if self.config.num_experts else Decoder.feed_forward_leaves(self)

    def _convolution_leaves(self) -> list[Leaf]:
        config, hidden = self.config, self.config.hidden_size

        def exact(leaf: str, shape: tuple[int, ...], suffix: str) -> Leaf:
            stored = {
                "safetensors": Stored(f"model.layers.{{layer}}.conv.conv.{suffix}", Squeezed if shape[1:] else None),
                "gguf": Stored(f"blk.{{layer}}.shortconv.conv.{suffix}"),
            }
            return Leaf(leaf, LeafKind.VECTOR, (Part(shape, stored),), is_exact=True)

        sizes = {"in": (3 * hidden, hidden), "out": (hidden, hidden)}
        names = {kind: (f"conv.{kind}_proj", f"shortconv.{kind}_proj") for kind in sizes}
        leaves = [
            *(Leaf(f"conv_{kind}", LeafKind.MATRIX, (in_layers(sizes[kind], names[kind]),)) for kind in sizes),
            exact("convolution", (hidden, config.kernel), "weight"),
        ]
        if config.has_convolution_bias:
            leaves += [
                Leaf(
                    f"conv_{kind}_bias",
                    LeafKind.VECTOR,
                    (in_layers(sizes[kind][:1], names[kind], suffix="bias"),),
                )
                for kind in sizes
            ]
            leaves.append(exact("convolution_bias", (hidden,), "bias"))
        return leaves

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        """As `Decoder.forward`; layers come in runs of a pattern, as `through_layers` finds them."""
        config = self.config
        x, layout, _ = self.embed_with_pictures(params, tokens, kv, layout, backends.products)
        windows = np.array([config.windows[layer] for layer in config.attention_layers], np.int32)
        attention = AttentionConstants(
            num_heads=config.num_heads,
            scale=config.attention_scale,
            rotations=rotation_tables(layout.positions, config.rotary),
            tables=np.zeros(config.num_paged_layers, np.int32),
            windows=windows,
            q_norm=self.norm(params, "q_norm"),
            k_norm=self.norm(params, "k_norm"),
        )
        convolution = Convolution(params["convolution"], params.get("convolution_bias"), has_silu=False)
        dense = frozenset(config.dense_layers)
        kinds = [(config.is_convolution[layer], layer in dense) for layer in range(config.num_layers)]

        def run_pattern(run: Run, index: jax.Array, carry: Carry) -> Carry:
            pattern = kinds[run.first : run.first + run.length]
            for offset, kind in enumerate(pattern):
                # Among the layers with the same block, of which so many stand before the run and in each round of it.
                places = [
                    _count(kinds[: run.first + offset], part, kind) + index * _count(pattern, part, kind)
                    for part in (0, 1)
                ]
                layer = run.first + offset + index * run.length
                carry = self._layer(kind, layer, places, carry, params, layout, backends, attention, convolution)
            return carry

        carry: Carry = (x, kv)
        return through_layers(kinds, run_pattern, carry)

    def _layer(
        self, kind: Kind, layer: jax.Array, places: Sequence[jax.Array], carry: Carry, params: Params,
        layout: TokenLayout, backends: Backends, attention: AttentionConstants, convolution: Convolution,
    ) -> Carry:  # fmt: skip
        """The residual stream and kv after a layer; each of its blocks has a place among those of its kind."""
        (x, kv), products, place = carry, backends.products, places[0]
        is_convolution, is_dense = kind
        norm = self.norm(params, "attention_norm")
        assert norm is not None
        inputs = products.norm(x, norm, layer, layout)
        if is_convolution:
            bias = params.get("conv_in_bias")
            made = products.norm_product(inputs, None, params["conv_in"], place, layout, bias=bias)
            before, behind, values = jnp.split(made, 3, axis=1)
            mixed, kv = backends.convolution(before * values, kv, place, layout, convolution)
            bias = params.get("conv_out_bias")
            x = products.add_product(x, behind * mixed, params["conv_out"], place, layout, bias=bias)
        else:
            qkv = products.norm_product(inputs, None, params["qkv"], place, layout)
            attended, kv = backends.attention(qkv, kv, place, layout, attention)
            x = products.add_product(x, attended, params["attention_output"], place, layout)
        if not self.config.num_experts:
            return Decoder.feed_forward(self, x, params, layer, layout, products), kv
        feed_forward = self.dense_feed_forward if is_dense else self.feed_forward
        return feed_forward(x, params, layer, layout, products, num_others=layer - places[1]), kv


@dataclass(frozen=True)
class Lfm2Moe(Lfm2):
    """The same with experts behind the first layers."""

    model_type = "lfm2_moe"
    has_experts = True


def _count(kinds: Sequence[Kind], part: int, kind: Kind) -> int:
    """How many layers have the same first (0) or second (1) block."""
    return sum(of_layer[part] == kind[part] for of_layer in kinds)


def _with_experts(config: JsonFile, made: Lfm2Config) -> Lfm2Config:
    """The configuration of a folder with experts; raises ModelError."""
    num_dense = config.integer("num_dense_layers", least=0)
    num_dense = _NUM_DENSE_LAYERS if num_dense is None else num_dense
    if num_dense >= made.num_layers:
        raise config.error("num_dense_layers", f"it must be below the {made.num_layers} layers")
    routing = Routing(
        num_experts=config.required_integer("num_experts", least=1),
        num_picked=config.required_integer("num_experts_per_tok", least=1),
        normalises_shares=folder_config.read_flag(config, "norm_topk_prob", True),
        scoring=Scoring.SIGMOID,
        has_choice_bias=folder_config.read_flag(config, "use_expert_bias", True),
        share_scale=config.positive_number("routed_scaling_factor") or 1.0,
    )
    return _routed(made, routing, config.required_integer("moe_intermediate_size", least=1), num_dense)


def _with_experts_of_gguf(file: GGUFTensors, made: Lfm2Config) -> Lfm2Config:
    """The same of a GGUF file."""
    fields, num_dense = file.fields, gguf_config.read_count(file, "leading_dense_block_count")
    if num_dense >= made.num_layers:
        raise fields.error("leading_dense_block_count", f"it must be below the {made.num_layers} layers")
    normalises = fields.flag("expert_weights_norm")
    routing = Routing(
        num_experts=fields.required_integer("expert_count", least=1),
        num_picked=fields.required_integer("expert_used_count", least=1),
        normalises_shares=True if normalises is None else normalises,
        scoring=Scoring.SIGMOID,
        has_choice_bias=f"blk.{num_dense}.exp_probs_b.bias" in file.names,
        share_scale=gguf_config.read_multiplier(file, "expert_weights_scale"),
    )
    return _routed(made, routing, fields.required_integer("expert_feed_forward_length", least=1), num_dense)


def _routed(made: Lfm2Config, routing: Routing, inner: int, num_dense: int) -> Lfm2Config:
    routing.check()
    return dataclasses.replace(
        made, **vars(routing), intermediate_size=inner, dense_layers=tuple(range(num_dense)),
        dense_size=made.intermediate_size if num_dense else 0,
    )  # fmt: skip


def _made(usual: DecoderConfig, **others: Any) -> Lfm2Config:
    values = {each.name: getattr(usual, each.name) for each in dataclasses.fields(usual)}
    return Lfm2Config(**values, **others)


def _with_usual_names(config: JsonFile) -> JsonFile:
    """The configuration with the names of today, where it has those of the first releases."""
    known = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}
    renamed = {new: config.value(old) for old, new in known.items() if config.value(old) is not None}
    return config.with_values(renamed)


def _adjusted(config: JsonFile, size: int) -> int:
    """The inner size of dense blocks, which a configuration states before it is adjusted."""
    if not folder_config.read_flag(config, "block_auto_adjust_ff_dim", True):
        return size
    size = int(2 * size / 3)
    if "block_ffn_dim_multiplier" in config.names and config.value("block_ffn_dim_multiplier") is None:
        return size
    size = int((config.positive_number("block_ffn_dim_multiplier") or 1.0) * size)
    multiple = config.integer("block_multiple_of", least=1) or 256
    return -(-size // multiple) * multiple


def _read_kinds(config: JsonFile, num_layers: int) -> tuple[bool, ...]:
    """Which layers of a folder have a convolution; raises ModelError."""
    kinds, known = config.value("layer_types"), ("conv", "full_attention")
    if kinds is None:
        attending = config.value("full_attn_idxs")
        if not isinstance(attending, list) or any(not isinstance(each, int) for each in attending):
            raise config.error("full_attn_idxs", "it, or layer_types, must list the layers with attention")
        return _both_kinds(tuple(layer not in attending for layer in range(num_layers)))
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
        raise config.error("layer_types", f"it must list {num_layers} times {known[0]!r} or {known[1]!r}")
    return _both_kinds(tuple(kind == known[0] for kind in kinds))


def _both_kinds(is_convolution: tuple[bool, ...]) -> tuple[bool, ...]:
    if all(is_convolution) or not any(is_convolution):
        raise ModelError("all layers are of one kind; layers with attention and with convolutions are served together")
    return is_convolution
