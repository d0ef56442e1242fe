"""The architectures of DeepSeek-V2, V3 and R1 (DeepSeek-AI, 2024 and 2025), also of Kimi K2 and GLM 4.7 Flash."""

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed import latent_config
from engine.models.parts.routed.latent_config import with_latents
from engine.models.parts.routed.latent_decoder import LatentDecoder
from engine.models.parts.routing import Scoring
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: transformers' DeepseekV3Config.
_DEFAULTS: dict[str, Any] = {"n_group": 8, "topk_group": 4, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5}


@dataclass(frozen=True)
class Deepseek2(LatentDecoder):
    """Latent attention, and experts behind the first layers, whose shares are a softmax."""

    model_type: ClassVar[str] = "deepseek_v2"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual, sizes = latent_config.read_folder(config, tensor_names, cls.model_type)
        if config.text("topk_method") not in (None, "greedy", "group_limited_greedy"):
            raise config.error("topk_method", 'it must be "greedy" or "group_limited_greedy"')
        if config.text("topk_method") != "group_limited_greedy":
            config = config.with_values({"n_group": 1, "topk_group": 1})
        config = config.with_values({"norm_topk_prob": False})  # this class of models leaves it out
        made = routed_config.read_folder(config, usual, scoring=Scoring.SOFTMAX, has_choice_bias=False)
        return cls(with_latents(_of_softmax(made), sizes))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual, sizes = latent_config.read_gguf(file)
        has_bias = any(name.endswith(".exp_probs_b.bias") for name in file.names)
        scoring = Scoring.SIGMOID if has_bias else Scoring.SOFTMAX
        made = _of_softmax(routed_config.read_gguf(file, usual, scoring=scoring))
        if file.fields.value("attention.temperature_scale"):  # of Mistral Large 3, which is named alike
            raise file.fields.error("attention.temperature_scale", "queries that grow are not served here")
        return cls(with_latents(made, sizes), "blk.0.attn_kv_b.weight" in file.names)


@dataclass(frozen=True)
class DeepseekV3(Deepseek2):
    """The same with shares of a sigmoid, and a bias of choice."""

    model_type: ClassVar[str] = "deepseek_v3"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.text("model_type") == "kimi_k2":
            config = config.with_values({"model_type": cls.model_type})
        if config.text("scoring_func") not in (None, "sigmoid"):
            raise config.error("scoring_func", 'of this architecture it must be "sigmoid"')
        usual, sizes = latent_config.read_folder(config, tensor_names, cls.model_type)
        kinds = routed_config.read_kinds(config, usual.num_layers)
        made = routed_config.read_folder(config.with_defaults(_DEFAULTS), usual, dense_layers=kinds)
        return cls(with_latents(made, sizes))


@dataclass(frozen=True)
class Glm4MoeLite(Deepseek2):
    """GLM 4.7 Flash (GLM team, 2026): the same as DeepSeek-V3."""

    model_type: ClassVar[str] = "glm4_moe_lite"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual, sizes = latent_config.read_folder(config, tensor_names, cls.model_type)
        made = routed_config.read_folder(config.with_defaults({"first_k_dense_replace": 1}), usual)
        return cls(with_latents(made, sizes))


def _of_softmax(made: ExpertsConfig) -> ExpertsConfig:
    """In models with a softmax, the best group is that of the best expert."""
    return replace(made, num_best_of_group=1) if made.scoring is Scoring.SOFTMAX else made
