"""The first DeepSeek architecture of mixtures (Dai et al., "DeepSeekMoE", 2024)."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.models.parts.routing import Scoring
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_NO_GROUPS: dict[str, Any] = {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0}


@dataclass(frozen=True)
class Deepseek(RoutedDecoder):
    """Llama's attention, and experts behind the first layers, whose shares are a softmax."""

    is_paired_in_gguf = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.text("scoring_func") not in (None, "softmax"):
            raise config.error("scoring_func", 'of this architecture it must be "softmax"')
        if config.integer("moe_layer_freq", least=1) not in (None, 1):
            raise config.error("moe_layer_freq", "layers without experts between others are not served")
        usual = folder_config.read_decoder(config, tensor_names, "deepseek")
        made = routed_config.read_folder(
            config.with_values(_NO_GROUPS), usual, scoring=Scoring.SOFTMAX, has_choice_bias=False,
            normalises_shares=False,
        )  # fmt: skip
        return cls(made)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(routed_config.read_gguf(file, gguf_config.read_decoder(file), scoring=Scoring.SOFTMAX))
