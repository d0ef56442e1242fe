"""The architecture of MiMo-V2-Flash (Xiaomi, "MiMo-V2-Flash Technical Report", 2026)."""

import dataclasses
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np

from engine.backends.base.operands import AttentionConstants
from engine.backends.base.token_layout import TokenLayout
from engine.interface.errors import ModelError
from engine.models.parts import folder_config, gguf_config, rotary
from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.model import Model
from engine.models.parts.rotary_config import read_rotaries_of_kinds, read_rotary_dim_of_gguf, read_rotary_of_gguf
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored
from engine.weights.spread_heads import spread_inputs, spread_outputs

# Where config.json says nothing; source: transformers' MiMoV2FlashConfig.
_DEFAULTS: dict[str, Any] = {
    "head_dim": 192, "v_head_dim": 128, "sliding_window": 128, "attention_value_scale": 0.707, "rope_theta": 5e6,
}  # fmt: skip
_LOCAL_THETA, _ROTATED_PART = 10_000.0, 0.334
_PERIOD = 6  # the last of so many layers sees all, and the first of the model
_NO_SINK = -1e30  # a score that takes no weight
_SINK_NAMES = ("attention_sink_bias", "sinks")  # in a folder, as published and as transformers calls it


@dataclass(frozen=True, kw_only=True)
class Mimo2Config(ExpertsConfig):
    """A mixture's, with values that are narrower than queries and keys, and are scaled."""

    value_dim: int
    value_scale: float


@dataclass(frozen=True)
class Mimo2(RoutedDecoder):
    """Windows with sinks in most layers, whose keys have more heads; experts behind the first layer.

    All layers have as many heads of keys in the pages as those with windows: in the others several heads are the same.
    Values are as wide as keys there, with zeros behind them.
    """

    config: Mimo2Config
    # The name of sinks in a folder; it says nothing about the model itself.
    sink_name: str = field(default=_SINK_NAMES[0], compare=False)

    can_be_split: ClassVar[bool] = False
    takes_adapters: ClassVar[bool] = False
    # What predicts several tokens at once is left where it is.
    derived_tensors: ClassVar[re.Pattern[str]] = re.compile(Model.derived_tensors.pattern + r"|model\.mtp\..*")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults({**_DEFAULTS, "rms_norm_eps": config.value("layernorm_epsilon")})
        num_layers = config.required_integer("num_hidden_layers", least=1, most=folder_config.MAX_NUM_LAYERS)
        for name in ("head_dim", "v_head_dim", "num_attention_heads"):
            if config.value(f"swa_{name}") not in (None, config.value(name)):
                raise config.error(f"swa_{name}", f"it must be {name}, {config.value(name)!r}")
        for key, is_usual in (("add_swa_attention_sink_bias", True), ("add_full_attention_sink_bias", False)):
            if config.flag(key) not in (None, is_usual):
                raise config.error(key, "sinks are served in layers with windows, and there alone")
        if config.text("scoring_func") not in (None, "sigmoid"):
            raise config.error("scoring_func", 'of this architecture it must be "sigmoid"')
        head_dim = config.required_integer("head_dim", least=2, most=rotary.MAX_HEAD_DIM)
        rotary_dim = _read_rotary_dim(config, head_dim)
        context = config.required_integer("max_position_embeddings", least=2)
        local_theta = config.positive_number("swa_rope_theta") or _LOCAL_THETA
        rotaries = read_rotaries_of_kinds(config, rotary_dim, context, local_theta=local_theta)
        usual = folder_config.read_decoder(
            config, tensor_names, "mimo_v2_flash", rotary=rotaries[0], default_epsilon=1e-5
        )
        is_local = [bool(layer % _PERIOD != _PERIOD - 1 and layer) for layer in range(num_layers)]
        is_local = _read_pattern(config, "hybrid_layer_pattern", num_layers) or is_local
        num_kv_heads = config.integer("swa_num_key_value_heads", least=1) or 2 * usual.num_kv_heads
        has_experts = _read_pattern(config, "moe_layer_freq", num_layers)
        dense = [0] if has_experts is None else [layer for layer in range(num_layers) if not has_experts[layer]]
        named = routed_config.read_kinds(config, num_layers)
        made = routed_config.read_folder(config, usual, dense_layers=dense if named is None else named)
        if len(made.dense_layers) == num_layers:
            raise config.error("moe_layer_freq", "no layer has experts")
        sink_name = next((name for name in _SINK_NAMES if any(each.endswith(name) for each in tensor_names)), "")
        return cls(
            _of_mimo(
                made, folder_config.read_windows(config, is_local), rotaries, num_kv_heads,
                value_dim=config.required_integer("v_head_dim", least=1, most=head_dim),
                value_scale=config.positive_number("attention_value_scale") or 1.0,
            ),
            sink_name or _SINK_NAMES[0],
        )  # fmt: skip

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        fields = file.fields
        kv_heads = fields.value("attention.head_count_kv")
        if (
            not isinstance(kv_heads, list)
            or not kv_heads
            or any(not isinstance(each, int) or each < 1 for each in kv_heads)
        ):
            raise fields.error("attention.head_count_kv", "it must list the heads of all layers, each at least 1")
        inner = fields.required_integer("feed_forward_length", least=1)
        sizes = gguf_config.read_sizes_of(file, num_kv_heads=max(kv_heads), intermediate_size=inner)
        num_layers, head_dim = sizes["num_layers"], sizes["head_dim"]
        rotary_dim = read_rotary_dim_of_gguf(file, head_dim)
        full = read_rotary_of_gguf(file, rotary_dim, sizes["context_length"])
        local = rotary.plain(rotary_dim, fields.positive_number("rope.freq_base_swa") or _LOCAL_THETA)
        usual = gguf_config.decoder_of(file, sizes, full)
        pattern = fields.value("attention.sliding_window_pattern")
        if not isinstance(pattern, list) or len(pattern) < num_layers or any(each not in (0, 1) for each in pattern):
            raise fields.error(
                "attention.sliding_window_pattern", f"it must list 0 or 1 for each of {num_layers} layers"
            )
        window = fields.required_integer("attention.sliding_window", least=1)
        windows = tuple(window if each else 0 for each in pattern[:num_layers])
        routers = [f"blk.{layer}.ffn_gate_inp.weight" in file.names for layer in range(num_layers)]
        if True not in routers:
            raise ModelError(f"none of the {num_layers} layers has experts")
        made = routed_config.read_gguf(file, usual, normalises_shares=True, first=routers.index(True))
        dense = tuple(layer for layer in range(num_layers) if not routers[layer])
        made = dataclasses.replace(made, dense_layers=dense, dense_size=inner if dense else 0)
        value_dim = fields.integer("attention.value_length") or head_dim
        if value_dim > head_dim:
            raise fields.error("attention.value_length", f"it must be at most {head_dim}")
        return cls(
            _of_mimo(
                made, windows, (full, local), sizes["num_kv_heads"], value_dim=value_dim,
                value_scale=gguf_config.read_multiplier(file, "attention.value_scale"),
            )
        )  # fmt: skip

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        config = self.config
        q, k, v = super().qkv_parts(inputs)
        of_keys = spread_outputs(config.num_kv_heads, config.head_dim, config.head_dim)
        of_values = spread_outputs(config.num_kv_heads, config.value_dim, config.head_dim, scale=config.value_scale)
        return q, _with_transform(k, of_keys), _with_transform(v, of_values)

    def attention_leaves(self) -> list[Leaf]:
        config = self.config
        stored = {
            "safetensors": Stored(f"model.layers.{{layer}}.self_attn.{self.sink_name}"),
            "gguf": Stored("blk.{layer}.attn_sinks.weight"),
        }
        with_window = tuple(layer for layer, window in enumerate(config.windows) if window)
        transform = spread_inputs(config.num_heads, config.value_dim, config.head_dim)
        leaves = [
            dataclasses.replace(leaf, parts=tuple(_with_transform(part, transform) for part in leaf.parts))
            if leaf.name == "attention_output"
            else leaf
            for leaf in super().attention_leaves()
        ]
        sinks = Part((config.num_heads,), stored)
        return [*leaves, Leaf("sinks", LeafKind.VECTOR, (sinks,), layers=with_window, is_exact=True)]

    def constants(self, params: Params, layout: TokenLayout) -> AttentionConstants:
        """As `Decoder.constants`; the sinks of layers without a window take nothing."""
        config = self.config
        with_window = np.flatnonzero(config.windows)
        nothing = jnp.full((config.num_layers, config.num_heads), _NO_SINK, jnp.float32)
        sinks = nothing.at[with_window].set(params["sinks"].astype(jnp.float32))
        return dataclasses.replace(super().constants(params, layout), sinks=sinks)


def _with_transform(part: Part, transform: Any) -> Part:
    stored = {kind: dataclasses.replace(each, transform=transform) for kind, each in part.stored.items()}
    return dataclasses.replace(part, stored=stored)


def _read_rotary_dim(config: JsonFile, head_dim: int) -> int:
    """Features of a head that are rotated, of which transformers takes the whole ones; raises ModelError."""
    tables = config.table("rope_parameters")
    kinds = () if tables is None else (tables.table("full_attention"), tables.table("sliding_attention"))
    found = [(table, table.positive_number("partial_rotary_factor")) for table in kinds if table is not None]
    found = found or [(config, config.positive_number("partial_rotary_factor"))]
    table, factor = found[0]
    if any(other != factor for _, other in found):
        raise table.error("partial_rotary_factor", "it must be the same for all layers")
    factor = factor or _ROTATED_PART
    rotary_dim = int(head_dim * min(factor, 2.0))
    if factor > 1 or rotary_dim % 2 or rotary_dim == 0:
        raise table.error("partial_rotary_factor", f"it must make an even part of {head_dim} features")
    return rotary_dim


def _read_pattern(config: JsonFile, key: str, num_layers: int) -> list[bool] | None:
    """A list with 0 or 1 for each layer; None where it is absent. Raises ModelError."""
    value = config.value(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != num_layers or any(each not in (0, 1) for each in value):
        raise config.error(key, f"it must list 0 or 1 for each of {num_layers} layers")
    return [bool(each) for each in value]


def _of_mimo(
    made: ExpertsConfig, windows: Sequence[int], rotaries: tuple[rotary.Rotary, rotary.Rotary], num_kv_heads: int, *,
    value_dim: int, value_scale: float,
) -> Mimo2Config:  # fmt: skip
    """Layers without a window rotate by the first table, those with one by the second; raises ModelError."""
    if made.num_heads % num_kv_heads or num_kv_heads % made.num_kv_heads:
        raise ModelError(
            f"{made.num_heads} heads cannot share {num_kv_heads} and {made.num_kv_heads} heads of keys evenly"
        )
    if not any(windows):
        raise ModelError("no layer has a window, and so none has sinks")
    changed: dict[str, Any] = {
        **vars(made), "num_kv_heads": num_kv_heads, "windows": tuple(windows), "rotary": rotaries,
        "tables": tuple(int(window > 0) for window in windows), "has_attention_output_bias": False,
    }  # fmt: skip
    return Mimo2Config(**changed, value_dim=value_dim, value_scale=value_scale)
