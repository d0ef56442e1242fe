"""The architecture of GLM 4.5, 4.6 and 4.7 (GLM team, "GLM-4.5: Agentic, Reasoning, and Coding", 2025)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names, QueryKeyNorm
from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf

# Where config.json says nothing; source: transformers' Glm4MoeConfig.
_DEFAULTS: dict[str, Any] = {"partial_rotary_factor": 0.5}


@dataclass(frozen=True)
class Glm4MoeConfig(ExpertsConfig):
    """A mixture's, and whether queries and keys are normed."""

    has_query_key_norm: bool = False


@dataclass(frozen=True)
class Glm4Moe(RoutedDecoder):
    """A rotation of a part of each head, and experts behind the first layers."""

    config: Glm4MoeConfig

    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("input_layernorm", "attn_norm"),
        "mlp_norm": ("post_attention_layernorm", "post_attention_norm"),
    }
    query_key_norm = QueryKeyNorm.HEAD

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(
            config.with_defaults(_DEFAULTS), tensor_names, "glm4_moe", rotates_a_part=True, default_epsilon=1e-5
        )
        made = routed_config.read_folder(config, usual)
        has_norm = folder_config.read_flag(config, "use_qk_norm", False)
        return cls(Glm4MoeConfig(**{**vars(made), "has_attention_output_bias": False}, has_query_key_norm=has_norm))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        made = routed_config.read_gguf(file, gguf_config.read_decoder(file, rotates_a_part=True))
        return cls(Glm4MoeConfig(**vars(made), has_query_key_norm="blk.0.attn_q_norm.weight" in file.names))

    def attention_leaves(self) -> list[Leaf]:
        leaves = super().attention_leaves()
        if self.config.has_query_key_norm:
            return leaves
        return [leaf for leaf in leaves if leaf.name not in ("q_norm", "k_norm")]


@dataclass(frozen=True)
class SolarOpen(Glm4Moe):
    """Solar Open 100B (Upstage, 2025): whole heads are rotated, nothing is normed but blocks, and all have experts."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        inner = config.required_integer("moe_intermediate_size", least=1)
        usual = folder_config.read_decoder(
            config.with_values({"intermediate_size": inner}), tensor_names, "solar_open", rotates_a_part=True,
            default_theta=1_000_000.0, default_epsilon=1e-5,
        )  # fmt: skip
        made = routed_config.read_folder(config, usual, dense_layers=())
        return cls(Glm4MoeConfig(**{**vars(made), "has_attention_output_bias": False}))
