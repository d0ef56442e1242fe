"""The dots.llm1 architecture (Huo et al., "dots.llm1 Technical Report", 2025)."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import QueryKeyNorm
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_MAX_WINDOW_LAYERS = 62  # of transformers' class, where a configuration leaves it out
_WINDOW = 4096


@dataclass(frozen=True)
class Dots1(RoutedDecoder):
    """Qwen3's attention, perhaps with windows in the last layers, and experts behind the first layers."""

    query_key_norm = QueryKeyNorm.HEAD

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(config, tensor_names, "dots1")
        first = config.integer("max_window_layers", least=0)
        first = _MAX_WINDOW_LAYERS if first is None else first
        is_local = [layer >= first for layer in range(usual.num_layers)]
        windows = folder_config.read_windows(config, is_local, default=_WINDOW)
        usual = dataclasses.replace(usual, windows=windows)
        return cls(routed_config.read_folder(config, usual, normalises_shares=False))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(routed_config.read_gguf(file, gguf_config.read_decoder(file)))
