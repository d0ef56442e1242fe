"""The architecture of Hy3 (Tencent Hunyuan team, "Hy3", 2026)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from engine.interface.errors import ModelError
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names, QueryKeyNorm
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Part, Stored

_THETA = 11_158_840.0
# Where config.json says nothing; source: transformers' HYV3Config.
_DEFAULTS: dict[str, Any] = {"num_shared_experts": 1, "router_scaling_factor": 2.826, "first_k_dense_replace": 1}
_CHOICE_BIAS = "exp_probs_b"  # whose name has no ending in GGUF files


@dataclass(frozen=True)
class HyV3(RoutedDecoder):
    """Qwen3's attention, and routed and shared experts behind the first layers."""

    query_key_norm = QueryKeyNorm.HEAD
    router_names: ClassVar[Names] = ("mlp.router.gate", "ffn_gate_inp")
    choice_bias_names: ClassVar[Names] = ("mlp.expert_bias", _CHOICE_BIAS)
    shared_names: ClassVar[Mapping[str, Names]] = {
        "gate": ("mlp.shared_mlp.gate_proj", "ffn_gate_shexp"),
        "up": ("mlp.shared_mlp.up_proj", "ffn_up_shexp"),
        "down": ("mlp.shared_mlp.down_proj", "ffn_down_shexp"),
    }

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        usual = folder_config.read_decoder(config, tensor_names, "hy_v3", default_theta=_THETA, default_epsilon=1e-5)
        if usual.has_qkv_bias or usual.has_mlp_bias:
            raise config.error("attention_bias" if usual.has_qkv_bias else "mlp_bias", "biases are not served here")
        config = config.with_values(
            {
                "routed_scaling_factor": config.value("router_scaling_factor"),
                "norm_topk_prob": folder_config.read_flag(config, "route_norm", True),
            }
        )
        made = routed_config.read_folder(
            config, usual, experts_key="num_experts", shared_key="num_shared_experts",
            dense_layers=routed_config.read_kinds(config, usual.num_layers),
        )  # fmt: skip
        return cls(made)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Which layers have no experts is seen from the tensors."""
        usual = gguf_config.read_decoder(file)
        routers = [f"blk.{layer}.ffn_gate_inp.weight" in file.names for layer in range(usual.num_layers)]
        if True not in routers:
            raise ModelError(f"none of the {usual.num_layers} layers has experts")
        first = routers.index(True)
        made = routed_config.read_gguf(file, usual, normalises_shares=True, first=first)
        dense = tuple(layer for layer in range(usual.num_layers) if not routers[layer])
        has_bias = f"blk.{first}.{_CHOICE_BIAS}" in file.names
        dense_size = usual.intermediate_size if dense else 0
        return cls(replace(made, dense_layers=dense, dense_size=dense_size, has_choice_bias=has_bias))

    def choice_bias_part(self) -> Part:
        part = super().choice_bias_part()
        return replace(part, stored={**part.stored, "gguf": Stored(f"blk.{{layer}}.{_CHOICE_BIAS}")})
