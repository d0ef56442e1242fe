"""The Qwen3 architecture (Yang et al., "Qwen3 technical report", 2025) of its dense models."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.architectures.qwen2 import read_windows
from engine.models.parts import folder_config
from engine.models.parts.decoder import Decoder, QueryKeyNorm
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Qwen3(Decoder):
    """Llama's layers, in which each head of queries and keys is normed."""

    query_key_norm = QueryKeyNorm.HEAD

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(config, tensor_names, "qwen3")
        return cls(dataclasses.replace(usual, windows=read_windows(config, usual.num_layers)))
