"""The Qwen3 architecture (Yang et al., "Qwen3 technical report", 2025) of its mixture-of-experts models."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.architectures.qwen2 import read_windows
from engine.models.parts import folder_config
from engine.models.parts.decoder import QueryKeyNorm
from engine.models.parts.experts import ExpertsDecoder, read_folder, read_gguf, refuse_layers_without_experts
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Qwen3Moe(ExpertsDecoder):
    """Qwen3's attention, and experts in every layer."""

    query_key_norm = QueryKeyNorm.HEAD

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        refuse_layers_without_experts(config)
        usual = folder_config.read_decoder(config, tensor_names, "qwen3_moe")
        usual = dataclasses.replace(
            usual,
            intermediate_size=config.required_integer("moe_intermediate_size", least=1),
            windows=read_windows(config, usual.num_layers),
        )
        normalises = folder_config.read_flag(config, "norm_topk_prob", False)
        return cls(read_folder(config, usual, normalises_shares=normalises))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(read_gguf(file, normalises_shares=True))
