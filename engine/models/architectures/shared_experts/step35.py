"""The architecture of Step 3.5 Flash (StepFun, "Step 3.5 Flash", 2026)."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from engine.backends.base.backend import Products
from engine.backends.base.operands import Clamp, Picks
from engine.backends.base.token_layout import TokenLayout
from engine.interface.errors import ModelError
from engine.models.architectures.shared_experts.laguna import (
    Laguna,
    LagunaConfig,
    LayerKind,
    heads_of_kinds,
    read_rotaries,
    with_local_heads,
)
from engine.models.parts import folder_config, gguf_config, rotary
from engine.models.parts.decoder import Names
from engine.models.parts.rotary_config import FACTORS, read_factors
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.tensors import OneMore, Transform

_FULL, _LOCAL = "full_attention", "sliding_attention"
_NAMES = {
    "num_key_value_heads": "num_attention_groups", "num_experts": "moe_num_experts", "num_experts_per_tok": "moe_top_k",
    "shared_expert_intermediate_size": "share_expert_dim", "routed_scaling_factor": "moe_router_scaling_factor",
    "max_position_embeddings": "max_seq_len",
}  # fmt: skip
# The only values that published models have.
_USUAL: dict[str, Any] = {
    "use_qk_norm": True, "use_head_wise_attn_gate": True, "zero_centered": True, "use_moe_router_bias": True,
    "moe_router_activation": "sigmoid", "yarn_only_types": [_FULL],
}  # fmt: skip
_MOST_DIGITS = 9  # of the number of a layer; Python refuses to read some thousand
_NUM_FIRST = 3  # layers without experts, where a configuration does not say


@dataclass(frozen=True, kw_only=True)
class Step35Config(LagunaConfig):
    """As Laguna's, with limits of gates and ups in some layers; 0 stands for none."""

    limits: tuple[float, ...] = ()  # of each layer's experts
    shared_limits: tuple[float, ...] = ()
    shared_clamp: Clamp | None = None  # of the layer that is computed

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        limits = zip(super().kinds, self.limits, self.shared_limits, strict=True)
        return tuple(kind._replace(limit=limit, shared_limit=shared) for kind, limit, shared in limits)


@dataclass(frozen=True)
class Step35(Laguna):
    """Laguna's layers with gates of a sigmoid for each head, whose last ones limit gates and ups."""

    config: Step35Config

    router_names: ClassVar[Names] = ("moe.gate", "ffn_gate_inp")
    choice_bias_names: ClassVar[Names] = ("moe.router_bias", "exp_probs_b")
    expert_names: ClassVar[Mapping[str, Names]] = {
        "gate": ("moe.gate_proj", "ffn_gate_exps"),
        "up": ("moe.up_proj", "ffn_up_exps"),
        "down": ("moe.down_proj", "ffn_down_exps"),
    }
    shared_names: ClassVar[Mapping[str, Names]] = {
        "gate": ("share_expert.gate_proj", "ffn_gate_shexp"),
        "up": ("share_expert.up_proj", "ffn_up_shexp"),
        "down": ("share_expert.down_proj", "ffn_down_shexp"),
    }

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        for key, usual_value in _USUAL.items():
            if config.value(key) not in (None, usual_value):
                raise config.error(key, f"of this architecture it must be {usual_value!r}")
        num_layers = config.required_integer("num_hidden_layers", least=1, most=folder_config.MAX_NUM_LAYERS)
        config = config.with_values({key: config.value(own) or config.value(key) for key, own in _NAMES.items()})
        kinds = _read_of_layers(config, "layer_types", num_layers, (_FULL, _LOCAL)) or [_FULL] * num_layers
        config = config.with_values({"layer_types": kinds, "rope_parameters": _rotations(config, kinds)})
        full, local = read_rotaries(config)
        usual = folder_config.read_decoder(config, tensor_names, "step3p5", rotary=full, default_epsilon=1e-5)
        windows = folder_config.read_windows(config, [False] * num_layers)
        normalises = folder_config.read_flag(config, "norm_expert_weight", True)
        made = routed_config.read_folder(
            config.with_values({"norm_topk_prob": normalises}), usual, experts_key="num_experts",
            dense_layers=_read_dense(config, num_layers),
        )  # fmt: skip
        shared_size = config.required_integer("shared_expert_intermediate_size", least=1)
        num_local = made.num_heads
        others = config.table("attention_other_setting")
        if others is not None:
            num_local = others.integer("num_attention_heads", least=1, most=folder_config.MAX_NUM_HEADS) or num_local
            for key, size in (("num_attention_groups", made.num_kv_heads), ("head_dim", made.head_dim)):
                if others.integer(key, least=1) not in (None, size):
                    raise others.error(key, f"it must be that of the other layers, {size}")
        return cls(
            _of_step(
                with_local_heads(
                    replace(made, shared_size=shared_size), windows, local, num_local, gates_features=False
                ),
                *(_read_limits(config, key, num_layers) for key in ("swiglu_limits", "swiglu_limits_shared")),
            )
        )

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        fields = file.fields
        inner = fields.required_integer("feed_forward_length", least=1)
        num_kv_heads = gguf_config.read_of_layers(file, "attention.head_count_kv")
        heads = fields.value("attention.head_count")
        if not isinstance(heads, list) or not heads or any(type(each) is not int or each < 1 for each in heads):
            raise fields.error("attention.head_count", "it must list the heads of all layers, each at least 1")
        sizes = gguf_config.read_sizes_of(
            file, num_heads=min(heads), num_kv_heads=num_kv_heads, intermediate_size=inner
        )
        num_layers, head_dim = sizes["num_layers"], sizes["head_dim"]
        key, pattern = "attention.sliding_window_pattern", fields.value("attention.sliding_window_pattern")
        if not isinstance(pattern, list) or len(pattern) < num_layers or any(each not in (0, 1) for each in pattern):
            raise fields.error(key, f"it must list 0 or 1 for each of {num_layers} layers")
        window = fields.required_integer("attention.sliding_window", least=1)
        windows = tuple(window if each else 0 for each in pattern[:num_layers])
        of_kinds = heads_of_kinds(heads[:num_layers], windows) if len(heads) >= num_layers else None
        if of_kinds is None:
            raise fields.error("attention.head_count", "layers of one kind must have the same number")
        theta = fields.positive_number("rope.freq_base") or 10_000.0
        full_dim = head_dim // 2  # in all files
        full = rotary.plain(full_dim, theta)
        if FACTORS in file.names:
            full = rotary.divided(full_dim, theta, read_factors(file, FACTORS, head_dim)[: full_dim // 2])
        local = rotary.plain(head_dim, fields.positive_number("rope.freq_base_swa") or theta)
        usual = gguf_config.decoder_of(file, {**sizes, "num_heads": of_kinds[0]}, full)
        made = routed_config.read_gguf(file, usual, normalises_shares=True)
        return cls(
            _of_step(
                with_local_heads(made, windows, local, of_kinds[1], gates_features=False),
                *(_read_limits_of_gguf(file, f"swiglu_clamp_{kind}", num_layers) for kind in ("exp", "shexp")),
            )
        )

    def norm_transform_of_folder(self) -> Transform | None:
        return OneMore

    def opened(self, gates: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(gates)

    def for_kind(self, kind: LayerKind) -> Self:
        clamp, shared = (Clamp(None, limit) if limit else None for limit in (kind.limit, kind.shared_limit))
        return replace(self, config=replace(self.config, clamp=clamp, shared_clamp=shared))

    def with_experts(
        self, x: jax.Array, inputs: jax.Array, scores: jax.Array, params: Params, place: jax.Array,
        layout: TokenLayout, products: Products,
    ) -> jax.Array:  # fmt: skip
        """As `ExpertsDecoder.with_experts`; a shared expert with limits is one that every token picks."""
        config = self.config
        if config.shared_clamp is None:
            return super().with_experts(x, inputs, scores, params, place, layout, products)
        routed = replace(self, config=replace(config, shared_size=0))
        x = RoutedDecoder.with_experts(routed, x, inputs, scores, params, place, layout, products)
        only = jnp.zeros((len(inputs), 1), jnp.int32)
        return products.add_experts(
            x, inputs, params["shared_gate_up"], params["shared_down"], Picks(only, jnp.ones(only.shape), 1), place,
            layout, activation=config.activation, clamp=config.shared_clamp,
        )  # fmt: skip


def _of_step(made: LagunaConfig, limits: tuple[float, ...], shared_limits: tuple[float, ...]) -> Step35Config:
    """Raises ModelError if a layer without experts has limits."""
    if any(shared_limits[layer] for layer in made.dense_layers):
        raise ModelError("limits of gates and ups in layers without experts are not served")
    return Step35Config(**vars(made), limits=limits, shared_limits=shared_limits)


def _read_of_layers(config: JsonFile, key: str, num_layers: int, known: Sequence[str] = ()) -> list[Any] | None:
    """What a list says of each layer; those behind the last one, which it may name too, are left out."""
    value = config.value(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) < num_layers:
        raise config.error(key, f"it must be a list for {num_layers} layers")
    found = value[:num_layers]
    if known and any(each not in known for each in found):
        raise config.error(key, f"each must be one of {', '.join(map(repr, known))}")
    return found


def _rotations(config: JsonFile, kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
    """As transformers has it, a table for each kind of layer; layers of one kind have one base and one part."""
    num_layers = len(kinds)
    bases = config.value("rope_theta")
    bases = _read_of_layers(config, "rope_theta", num_layers) if isinstance(bases, list) else [bases] * num_layers
    parts = _read_of_layers(config, "partial_rotary_factors", num_layers) or [1.0] * num_layers
    made: dict[str, dict[str, Any]] = {}
    for kind, base, part in zip(kinds, bases or (), parts, strict=True):
        table = {"rope_theta": 10_000.0 if base is None else base, "partial_rotary_factor": part}
        if made.setdefault(kind, table) != table:
            raise config.error("partial_rotary_factors", f"layers of the kind {kind!r} must rotate alike")
    scaling = config.table("rope_scaling")
    if scaling is not None and _FULL in made:
        made[_FULL] |= {name: scaling.value(name) for name in scaling.names}
    return made


def _read_dense(config: JsonFile, num_layers: int) -> list[int]:
    """The layers without experts; raises ModelError."""
    key = "moe_layers_enum"
    value = config.value(key)
    numbers = value.split(",") if isinstance(value, str) else value
    if numbers is None:
        numbers = range(_NUM_FIRST, num_layers)
    texts = [str(each).strip() for each in numbers] if isinstance(numbers, list | range) else [""]
    if any(not text.isdecimal() or len(text) > _MOST_DIGITS for text in texts):
        raise config.error(key, "it must list layers")
    sparse = set(map(int, texts))
    dense = [layer for layer in range(num_layers) if layer not in sparse]
    if len(dense) == num_layers:
        raise config.error(key, "no layer has experts")
    return dense


def _read_limits(config: JsonFile, key: str, num_layers: int) -> tuple[float, ...]:
    found = _read_of_layers(config, key, num_layers) or [None] * num_layers
    if any(each is not None and (type(each) not in (int, float) or not 0 <= each < 1e30) for each in found):
        raise config.error(key, "each must be null or a number of at least 0")
    return tuple(float(each or 0.0) for each in found)


def _read_limits_of_gguf(file: GGUFTensors, key: str, num_layers: int) -> tuple[float, ...]:
    value = file.fields.value(key)
    found = value if isinstance(value, list) else [value or 0.0] * num_layers
    if len(found) < num_layers or any(type(each) not in (int, float) or not 0 <= each < 1e30 for each in found):
        raise file.fields.error(key, f"it must list a number of at least 0 for each of {num_layers} layers")
    return tuple(float(str(np.float32(each))) for each in found[:num_layers])  # the shortest ones that are stored so
