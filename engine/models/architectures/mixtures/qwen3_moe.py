"""The Qwen3 architecture (Yang et al., "Qwen3 technical report", 2025) of its mixture-of-experts models."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.parts import folder_config
from engine.models.parts.decoder import QueryKeyNorm
from engine.models.parts.experts import ExpertsDecoder, read_folder, read_gguf, with_dense_layers
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Qwen3Moe(ExpertsDecoder):
    """Qwen3's attention, and experts in every layer or in some."""

    query_key_norm = QueryKeyNorm.HEAD

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(config, tensor_names, "qwen3_moe")
        inner, dense_size = config.required_integer("moe_intermediate_size", least=1), usual.intermediate_size
        usual = dataclasses.replace(usual, intermediate_size=inner)
        if config.flag("use_sliding_window"):  # in all layers, unlike in dense models
            windows = folder_config.read_windows(config, [True] * usual.num_layers)
            usual = dataclasses.replace(usual, windows=windows)
        normalises = folder_config.read_flag(config, "norm_topk_prob", False)
        made = read_folder(config, usual, normalises_shares=normalises)
        return cls(with_dense_layers(config, made, dense_size))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(read_gguf(file, normalises_shares=True))
