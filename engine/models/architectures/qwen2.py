"""The Qwen2 architecture (Yang et al., "Qwen2 technical report", 2024), also of Qwen2.5."""

import dataclasses
import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder
from engine.models.parts.model import Model
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Qwen2(Decoder):
    """Llama's layers with biases on queries, keys and values, and windows in the upper layers of some models."""

    model_type = "qwen2"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(config, tensor_names, cls.model_type)
        windows = read_windows(config, usual.num_layers)
        # A flag for biases, which some configurations have, counts for nothing in this class of models.
        return cls(dataclasses.replace(usual, windows=windows, has_qkv_bias=True, has_attention_output_bias=False))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(dataclasses.replace(gguf_config.read_decoder(file), has_qkv_bias=True))


@dataclass(frozen=True)
class MiMo(Qwen2):
    """MiMo 7B (Xiaomi, "MiMo", 2025): the same. The layer that predicts several tokens at once is left where it is."""

    model_type = "mimo"
    derived_tensors = re.compile(Model.derived_tensors.pattern + r"|model\.mtp_layers\..*")


def read_windows(config: JsonFile, num_layers: int) -> tuple[int, ...]:
    """The window of each layer of Qwen's models, 0 for all; raises ModelError if a field is wrong."""
    if not config.flag("use_sliding_window"):
        return (0,) * num_layers
    first_local = config.integer("max_window_layers", least=0)
    is_local = [first_local is not None and layer >= first_local for layer in range(num_layers)]
    return folder_config.read_windows(config, is_local)
