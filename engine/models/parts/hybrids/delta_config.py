"""The configuration of decoders with gated delta-nets, and how files state it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

from cache.states import StateArray
from engine.interface.errors import ModelError
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.rotary_config import (
    read_rotary,
    read_rotary_dim,
    read_rotary_dim_of_gguf,
    read_rotary_of_gguf,
)
from engine.weights.formats.fields import Fields
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

FULL_INTERVAL = 4  # the last of so many layers attends, where a file does not say
# Where config.json says nothing; source: transformers' Qwen3NextConfig.
_DEFAULTS: dict[str, Any] = {
    "head_dim": 256, "partial_rotary_factor": 0.25, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip
MAX_DELTA_SIZE = 1 << 20  # of keys or values of a token; far above any model's


@dataclass(frozen=True)
class DeltaSizes:
    """The sizes of gated delta-nets."""

    num_key_heads: int
    num_heads: int  # of values
    key_dim: int
    value_dim: int
    kernel: int  # tokens that the convolution sees, its own included
    is_tiled: bool = False  # how heads of values share those of keys, as in `GatedDelta`

    def __post_init__(self) -> None:
        """Raises ModelError for heads that cannot share keys evenly, and for sizes that no model has."""
        if self.num_heads % self.num_key_heads:
            raise ModelError(
                f"in a delta-net {self.num_heads} heads of values cannot share {self.num_key_heads} of keys evenly"
            )
        if max(self.key_size, self.value_size) > MAX_DELTA_SIZE or not 2 <= self.kernel <= 64:
            raise ModelError(
                f"a delta-net has {self.num_key_heads} heads of keys of {self.key_dim} features, {self.num_heads} "
                f"heads of values of {self.value_dim} and a convolution of {self.kernel}; at most {MAX_DELTA_SIZE} "
                "features of a token and convolutions of 2 to 64 are served"
            )

    @property
    def key_size(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        return self.num_heads * self.value_dim

    @property
    def num_channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    @property
    def group_widths(self) -> tuple[int, int, int, int]:
        """Features of a token that belong to a head of keys: queries, keys, and values and gates of its heads."""
        values = self.num_heads // self.num_key_heads * self.value_dim
        return self.key_dim, self.key_dim, values, values


@dataclass(frozen=True, kw_only=True)
class WithDeltaLayers(ExpertsConfig):
    """A decoder's, some of whose layers are delta-nets."""

    delta: DeltaSizes
    is_recurrent: tuple[bool, ...]  # of each layer

    @property
    def recurrent_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer in range(self.num_layers) if self.is_recurrent[layer])

    @property
    def attention_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer in range(self.num_layers) if not self.is_recurrent[layer])

    @property
    def num_paged_layers(self) -> int:
        return len(self.attention_layers)

    @property
    def states(self) -> tuple[StateArray, ...]:
        delta, num_layers = self.delta, len(self.recurrent_layers)
        return (
            StateArray("inputs", num_layers, (delta.kernel - 1, delta.num_channels)),
            StateArray("matrices", num_layers, (delta.num_heads, delta.key_dim, delta.value_dim)),
        )

    @property
    def product_inputs(self) -> dict[str, int]:
        """As `ModelConfig.product_inputs`."""
        return {**super().product_inputs, "delta values": self.delta.value_size}

    @property
    def recurrence_sizes(self) -> dict[str, int]:
        """As `ModelConfig.recurrence_sizes`."""
        return {"keys": self.delta.key_dim, "values": self.delta.value_dim}


@dataclass(frozen=True, kw_only=True)
class DeltaConfig(WithDeltaLayers):
    """A decoder's of gated delta-nets; `num_experts` is 0 where the feed-forward blocks are dense."""

    @property
    def joined_outputs(self) -> dict[str, int]:
        """As `ModelConfig.joined_outputs`."""
        return {**super().joined_outputs, "queries": self.q_size, "delta channels": self.delta.num_channels}


def read_kinds(config: JsonFile, num_layers: int) -> tuple[bool, ...]:
    """Which layers of a folder are recurrent; raises ModelError."""
    kinds, known = config.value("layer_types"), ("linear_attention", "full_attention")
    if kinds is None:
        return kinds_by_interval(num_layers, config.integer("full_attention_interval", least=1) or FULL_INTERVAL)
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
        raise config.error("layer_types", f"it must list {num_layers} times {known[0]!r} or {known[1]!r}")
    return _both_kinds(tuple(kind == known[0] for kind in kinds))


def kinds_by_interval(num_layers: int, interval: int) -> tuple[bool, ...]:
    """Which layers are recurrent where the last of each interval attends; raises ModelError."""
    return _both_kinds(tuple((layer + 1) % interval != 0 for layer in range(num_layers)))


def _read_kinds_of_gguf(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """The same of a GGUF file, which lists them, with those behind the last layer, or states an interval."""
    kinds, key = fields.value("attention.recurrent_layers"), "attention.recurrent_layers"
    if kinds is None:
        return kinds_by_interval(num_layers, fields.integer("full_attention_interval", least=1) or FULL_INTERVAL)
    if not isinstance(kinds, list) or len(kinds) < num_layers or any(kind not in (0, 1) for kind in kinds):
        raise fields.error(key, f"it must say of each of {num_layers} layers whether it is recurrent")
    return _both_kinds(tuple(map(bool, kinds[:num_layers])))


def _both_kinds(is_recurrent: tuple[bool, ...]) -> tuple[bool, ...]:
    if all(is_recurrent) or not any(is_recurrent):
        raise ModelError("all layers are of one kind; layers with attention and with delta-nets are served together")
    return is_recurrent


def read_folder(config: JsonFile, tensor_names: Set[str], model_type: str, *, has_experts: bool) -> DeltaConfig:
    """The configuration in `config.json`; raises ModelError."""
    config = config.with_defaults(_DEFAULTS)
    if config.value("mlp_only_layers") not in (None, []):
        raise config.error("mlp_only_layers", "layers without experts are not served")
    if config.integer("decoder_sparse_step", least=1) not in (None, 1):
        raise config.error("decoder_sparse_step", "layers without experts are not served")
    if folder_config.read_flag(config, "attention_bias", False):
        raise config.error("attention_bias", "biases are not served")
    if has_experts:
        inner = config.required_integer("moe_intermediate_size", least=1)
        config = config.with_values({"intermediate_size": inner})
    sizes = folder_config.read_sizes(config)
    head_dim, context = sizes["head_dim"], sizes["context_length"]
    rotary = read_rotary(config, read_rotary_dim(config, head_dim), context)
    usual = folder_config.read_decoder(config, tensor_names, model_type, rotary=rotary)
    delta = DeltaSizes(
        num_key_heads=config.required_integer("linear_num_key_heads", least=1),
        num_heads=config.required_integer("linear_num_value_heads", least=1),
        key_dim=config.required_integer("linear_key_head_dim", least=1),
        value_dim=config.required_integer("linear_value_head_dim", least=1),
        kernel=config.required_integer("linear_conv_kernel_dim", least=1),
    )
    made = DeltaConfig(**vars(usual), delta=delta, is_recurrent=read_kinds(config, usual.num_layers))
    if not has_experts:
        return made
    return _with_experts(
        made,
        num_experts=config.required_integer("num_experts", least=1),
        num_picked=config.required_integer("num_experts_per_tok", least=1),
        shared_size=config.required_integer("shared_expert_intermediate_size", least=1),
        normalises_shares=folder_config.read_flag(config, "norm_topk_prob", True),
    )


def read_gguf(file: GGUFTensors, *, is_tiled: bool, has_experts: bool) -> DeltaConfig:
    """The configuration in a GGUF file; raises ModelError."""
    fields, sizes = file.fields, gguf_config.read_sizes(file)
    rotary_dim = read_rotary_dim_of_gguf(file, sizes["head_dim"])
    usual = gguf_config.read_decoder(file, rotary=read_rotary_of_gguf(file, rotary_dim, sizes["context_length"]))
    num_heads = fields.required_integer("ssm.time_step_rank", least=1)
    value_size = fields.required_integer("ssm.inner_size", least=1)
    if value_size % num_heads:
        raise fields.error("ssm.inner_size", f"it must be a multiple of the {num_heads} heads of ssm.time_step_rank")
    delta = DeltaSizes(
        num_key_heads=fields.required_integer("ssm.group_count", least=1),
        num_heads=num_heads,
        key_dim=fields.required_integer("ssm.state_size", least=1),
        value_dim=value_size // num_heads,
        kernel=fields.required_integer("ssm.conv_kernel", least=1),
        is_tiled=is_tiled,
    )
    if has_experts:
        usual = replace(usual, intermediate_size=fields.required_integer("expert_feed_forward_length", least=1))
    made = DeltaConfig(**vars(usual), delta=delta, is_recurrent=_read_kinds_of_gguf(fields, usual.num_layers))
    if not has_experts:
        return made
    normalises = fields.flag("expert_weights_norm")
    return _with_experts(
        made,
        num_experts=fields.required_integer("expert_count", least=1),
        num_picked=fields.required_integer("expert_used_count", least=1),
        shared_size=fields.required_integer("expert_shared_feed_forward_length", least=1),
        normalises_shares=True if normalises is None else normalises,
    )


def _with_experts(
    usual: DeltaConfig, *, num_experts: int, num_picked: int, shared_size: int, normalises_shares: bool
) -> DeltaConfig:
    made = replace(
        usual,
        num_experts=num_experts,
        num_picked=num_picked,
        shared_size=shared_size,
        normalises_shares=normalises_shares,
    )
    made.check()
    return made
