"""The architecture of DeciLM and Nemotron NAS, whose layers a search has chosen (Bercovich et al., "Puzzle", 2024)."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax

from cache.storage import KVPages
from engine.backends.base.backend import Backends
from engine.backends.base.operands import AttentionConstants, Norm
from engine.backends.base.token_layout import TokenLayout
from engine.interface.errors import ModelError
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder, Names, in_layers
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.hybrids.layers import Run, through_layers
from engine.models.parts.model import Carry
from engine.models.parts.rotary_config import read_rotary_dim_of_gguf, read_rotary_of_gguf
from engine.weights.formats.fields import MAX_INTEGER
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split
from engine.weights.spread_heads import spread_outputs
from engine.weights.tensors import Transform, in_turn

_MODEL_TYPES = ("nemotron-nas", "deci")
_SIZE_MULTIPLE = 256  # to which the sizes of feed-forward blocks are rounded up
# What a block's configuration may ask for that published models do not.
_UNSERVED = {
    "attention": ("window_length", "num_sink_tokens", "sparsify", "mamba", "llama4"),
    "ffn": ("replace_with_linear", "sparsify", "moe"),
}


class LayerKind(NamedTuple):
    """What a layer's program depends on."""

    attends: bool
    is_linear: bool  # whether a matrix stands in the place of its attention
    feed_size: int  # inner features of its feed-forward block; 0: it has none

    @property
    def stacks(self) -> tuple[str, ...]:
        """The groups of leaves that have the layer's weights."""
        attention = ("attention",) if self.attends else ("linear",) if self.is_linear else ()
        return (*attention, f"feed {self.feed_size}") if self.feed_size else attention


class DeciLayer(NamedTuple):
    """The sizes of a layer."""

    num_kv_heads: int  # 0: it does not attend
    is_linear: bool
    feed_size: int

    @property
    def kind(self) -> LayerKind:
        return LayerKind(self.num_kv_heads > 0, self.is_linear, self.feed_size)


@dataclass(frozen=True, kw_only=True)
class DeciConfig(DecoderConfig):
    """A decoder's, in which `tables` and `windows` are those of the layers that attend."""

    layers: tuple[DeciLayer, ...]

    @property
    def attention_layers(self) -> tuple[int, ...]:
        return tuple(index for index, layer in enumerate(self.layers) if layer.num_kv_heads)

    @property
    def linear_layers(self) -> tuple[int, ...]:
        return tuple(index for index, layer in enumerate(self.layers) if layer.is_linear)

    @property
    def layers_of_size(self) -> dict[int, tuple[int, ...]]:
        """The layers with a feed-forward block, by its size."""
        sizes = dict.fromkeys(layer.feed_size for layer in self.layers if layer.feed_size)
        return {
            size: tuple(index for index, layer in enumerate(self.layers) if layer.feed_size == size) for size in sizes
        }

    @property
    def num_paged_layers(self) -> int:
        return len(self.attention_layers)

    @property
    def product_inputs(self) -> dict[str, int]:
        """As `ModelConfig.product_inputs`."""
        of_blocks = {f"intermediate of layer {layers[0]}": size for size, layers in self.layers_of_size.items()}
        return {"hidden": self.hidden_size, "queries": self.q_size, **of_blocks}


@dataclass(frozen=True)
class Deci(Decoder):
    """Llama's layers, of which some have no attention or no feed-forward block, or ones of other sizes.

    All layers that attend have as many heads of keys in the pages as the one with the most: in the others several heads
    are the same.
    """

    config: DeciConfig

    takes_adapters: ClassVar[bool] = False
    can_be_split: ClassVar[bool] = False
    is_paired_in_gguf = True
    norms: ClassVar[Mapping[str, Names]] = {}  # they are among the leaves of their blocks
    attention_norm_names: ClassVar[Names] = ("input_layernorm", "attn_norm")
    mlp_norm_names: ClassVar[Names] = ("post_attention_layernorm", "ffn_norm")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        model_type = config.text("model_type")
        if model_type not in (None, *_MODEL_TYPES):
            raise config.error("model_type", f'of this architecture it must be "{_MODEL_TYPES[0]}"')
        layers = _read_layers(config)
        usual = folder_config.read_decoder(
            config.with_values(
                {
                    "num_hidden_layers": len(layers),
                    "num_key_value_heads": max(layer.num_kv_heads for layer in layers) or None,
                    "intermediate_size": max(layer.feed_size for layer in layers) or 1,
                }
            ),
            tensor_names,
            model_type or _MODEL_TYPES[0],
        )
        return cls(_of_deci(usual, layers))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        num_layers = file.fields.required_integer("block_count", least=1)
        heads, kv_heads, feed_sizes = (
            _of_layers(file, key, num_layers)
            for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
        )
        layers = tuple(
            DeciLayer(num_kv_heads if num_heads else 0, num_heads > 0 and num_kv_heads == 0, feed_size)
            for num_heads, num_kv_heads, feed_size in zip(heads, kv_heads, feed_sizes, strict=True)
        )
        sizes = gguf_config.read_sizes_of(
            file,
            num_kv_heads=max(layer.num_kv_heads for layer in layers) or None,
            intermediate_size=max(feed_sizes) or 1,
        )
        if sizes["num_layers"] != num_layers:
            raise file.fields.error("nextn_predict_layers", "it is not served of this architecture")
        rotary_dim = read_rotary_dim_of_gguf(file, sizes["head_dim"])
        rotary = read_rotary_of_gguf(file, rotary_dim, sizes["context_length"])
        attending = [index for index, layer in enumerate(layers) if layer.num_kv_heads]
        return cls(
            _of_deci(gguf_config.decoder_of(file, sizes, rotary, bias_layer=attending[0] if attending else 0), layers)
        )

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        config = self.config
        q, k, v = super().qkv_parts(inputs)
        spread = spread_outputs(config.num_kv_heads, config.head_dim, config.head_dim)
        return q, _followed_by(k, spread), _followed_by(v, spread)

    def attention_leaves(self) -> list[Leaf]:
        config, hidden = self.config, self.config.hidden_size
        norm_names = self.attention_norm_names
        attending = [*self.norm_leaves("attention_norm", hidden, norm_names), *super().attention_leaves()]
        leaves = [replace(leaf, layers=config.attention_layers) for leaf in attending]
        if config.linear_layers:
            matrix = in_layers((hidden, hidden), ("self_attn.linear_attn", "attn_output"))
            linear = [*self.norm_leaves("linear_norm", hidden, norm_names), Leaf("linear", LeafKind.MATRIX, (matrix,))]
            leaves += [replace(leaf, layers=config.linear_layers) for leaf in linear]
        return leaves

    def feed_forward_leaves(self) -> list[Leaf]:
        """Those of each size of a block."""
        config, hidden = self.config, self.config.hidden_size
        leaves = []
        for size, layers in config.layers_of_size.items():
            up = tuple(in_layers((size, hidden), (f"mlp.{kind}_proj", f"ffn_{kind}")) for kind in ("gate", "up"))
            down = in_layers((hidden, size), ("mlp.down_proj", "ffn_down"))
            of_size = [
                *self.norm_leaves(f"mlp_norm_{size}", hidden, self.mlp_norm_names),
                Leaf(f"gate_up_{size}", LeafKind.GATED, up, Split.OUTPUTS),
                Leaf(f"down_{size}", LeafKind.MATRIX, (down,), Split.INPUTS),
            ]
            leaves += [replace(leaf, layers=layers) for leaf in of_size]
        return leaves

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        """As `Decoder.forward`; layers come in runs of a pattern, as `through_layers` finds them."""
        kinds = [layer.kind for layer in self.config.layers]
        constants = self.constants(params, layout)

        def run_pattern(run: Run, index: jax.Array, carry: Carry) -> Carry:
            pattern = kinds[run.first : run.first + run.length]
            for offset, kind in enumerate(pattern):
                before = kinds[: run.first + offset]
                places = {stack: _count(before, stack) + index * _count(pattern, stack) for stack in kind.stacks}
                carry = self._layer(carry, kind, places, params, layout, backends, constants)
            return carry

        carry: Carry = (self.embed(params, tokens, layout, backends.products), kv)
        return through_layers(kinds, run_pattern, carry)

    def _layer(
        self, carry: Carry, kind: LayerKind, places: dict[str, jax.Array], params: Params, layout: TokenLayout,
        backends: Backends, constants: AttentionConstants,
    ) -> Carry:  # fmt: skip
        """The residual stream and kv after a layer, whose weights are at these places of their stacks."""
        (x, kv), products, epsilon = carry, backends.products, self.config.rms_norm_eps
        if kind.attends:
            place = places["attention"]
            attended, kv = self.attend(x, kv, params, place, layout, backends, constants)
            x = self.added(x, attended, "attention_output", params, place, layout, products)
        elif kind.is_linear:
            place = places["linear"]
            normed = products.norm(x, Norm(params["linear_norm"], epsilon), place, layout)
            x = products.add_product(x, normed, params["linear"], place, layout)
        if kind.feed_size:
            size, place = kind.feed_size, places[f"feed {kind.feed_size}"]
            mixed = products.norm_product(
                x, Norm(params[f"mlp_norm_{size}"], epsilon), params[f"gate_up_{size}"], place, layout,
                activation=self.config.activation, is_gated=True,
            )  # fmt: skip
            x = self.added(x, mixed, f"down_{size}", params, place, layout, products)
        return x, kv


def _count(kinds: Sequence[LayerKind], stack: str) -> int:
    return sum(stack in kind.stacks for kind in kinds)


def _followed_by(part: Part, transform: Transform) -> Part:
    stored = {
        kind: replace(each, transform=transform if each.transform is None else in_turn(each.transform, transform))
        for kind, each in part.stored.items()
    }
    return replace(part, stored=stored)


def _read_layers(config: JsonFile) -> tuple[DeciLayer, ...]:
    """The layers of a folder; raises ModelError."""
    num_layers = config.required_integer("num_hidden_layers", least=1, most=folder_config.MAX_NUM_LAYERS)
    num_heads = config.required_integer("num_attention_heads", least=1, most=folder_config.MAX_NUM_HEADS)
    hidden_size = config.required_integer("hidden_size", least=1)
    blocks, key = config.value("block_configs"), "num_key_value_heads_per_layer"
    if blocks is None:
        size = config.required_integer("intermediate_size", least=1)
        kv_heads = config.value(key)
        if kv_heads is None:
            kv_heads = [config.integer("num_key_value_heads", least=1) or num_heads] * num_layers
        if not isinstance(kv_heads, list) or len(kv_heads) != num_layers or any(type(n) is not int for n in kv_heads):
            raise config.error(key, f"it must list the heads of {num_layers} layers")
        if any(count < 1 or num_heads % count for count in kv_heads):
            raise config.error(key, f"each must divide num_attention_heads ({num_heads})")
        return tuple(DeciLayer(count, False, size) for count in kv_heads)
    if not isinstance(blocks, list) or len(blocks) != num_layers:
        raise config.error("block_configs", f"it must list {num_layers} layers")
    try:
        return tuple(_read_block(block, num_heads, hidden_size) for block in blocks)
    except ValueError as error:
        raise config.error("block_configs", str(error)) from None


def _read_block(block: Any, num_heads: int, hidden_size: int) -> DeciLayer:
    """Raises ValueError, with what must be."""
    attention, ffn = (_part_of_block(block, name, keys) for name, keys in _UNSERVED.items())
    group, factor = attention.get("n_heads_in_group"), ffn.get("ffn_mult")
    num_kv_heads = 0
    if group is not None and not attention.get("no_op"):
        if type(group) is not int or group < 1 or num_heads % group:
            raise ValueError(f"n_heads_in_group must divide the {num_heads} heads")
        num_kv_heads = num_heads // group
    is_linear = not num_kv_heads and not attention.get("no_op") and bool(attention.get("replace_with_linear"))
    if factor is None or ffn.get("no_op"):
        return DeciLayer(num_kv_heads, is_linear, 0)
    if type(factor) not in (int, float) or not 0 < factor < MAX_INTEGER / hidden_size:
        raise ValueError("ffn_mult must be a number above 0")
    feed_size = math.ceil(int(2 * factor * hidden_size / 3) / _SIZE_MULTIPLE) * _SIZE_MULTIPLE
    if not feed_size:
        raise ValueError("ffn_mult is too small: not one feature is left")
    return DeciLayer(num_kv_heads, is_linear, feed_size)


def _part_of_block(block: Any, name: str, unserved: Sequence[str]) -> dict[str, Any]:
    """Raises ValueError, as `_read_block`."""
    part = block.get(name) if isinstance(block, dict) else None
    if not isinstance(part, dict):
        raise ValueError('each layer must have an object for "attention" and one for "ffn"')
    found = next((key for key in unserved if part.get(key)), None)
    if found is not None:
        raise ValueError(f"{found} of {name} is not served")
    return part


def _of_layers(file: GGUFTensors, key: str, num_layers: int) -> tuple[int, ...]:
    """A size of each layer, 0 where it has no such thing; raises ModelError."""
    value = file.fields.value(key)
    if num_layers > len(file.names):
        raise ModelError(f"the file has {len(file.names)} tensors, too few for {num_layers} layers")
    if not isinstance(value, list):
        return (file.fields.required_integer(key, least=1),) * num_layers
    if len(value) != num_layers or any(type(each) is not int or not 0 <= each <= MAX_INTEGER for each in value):
        raise file.fields.error(key, f"it must list a size for each of {num_layers} layers")
    return tuple(value)


def _of_deci(usual: DecoderConfig, layers: tuple[DeciLayer, ...]) -> DeciConfig:
    """Raises ModelError if no layer attends, or heads of keys cannot be repeated."""
    counts = {layer.num_kv_heads for layer in layers if layer.num_kv_heads}
    if not counts:
        raise ModelError("no layer attends")
    if any(usual.num_kv_heads % count for count in counts):
        raise ModelError(f"layers with {', '.join(map(str, sorted(counts)))} heads of keys are not served together")
    if usual.has_mlp_bias:
        raise ModelError("biases of feed-forward blocks are not served")
    changed = {**vars(usual), "tables": (0,) * _attending(layers), "windows": usual.windows[: _attending(layers)]}
    return DeciConfig(**changed, layers=layers)


def _attending(layers: tuple[DeciLayer, ...]) -> int:
    return sum(layer.num_kv_heads > 0 for layer in layers)
