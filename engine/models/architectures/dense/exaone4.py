"""The EXAONE 4.0 architecture (LG AI Research, "EXAONE 4.0", 2025)."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.architectures.olmo2 import Olmo2
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import QueryKeyNorm
from engine.models.parts.decoder_config import DecoderConfig
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_PERIOD = 4  # the last of so many layers sees all, where a file does not say
_WINDOW = 4096  # of transformers' class, where a configuration leaves it out


@dataclass(frozen=True)
class Exaone4(Olmo2):
    """Norms of what a block adds, and of each head; where layers have windows, those without one do not rotate."""

    query_key_norm = QueryKeyNorm.HEAD

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(config, tensor_names, "exaone4", default_epsilon=1e-5)
        return cls(read_windows_of_folder(config, usual))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(read_windows_of_gguf(file, gguf_config.read_decoder(file)))


def read_windows_of_folder(config: JsonFile, usual: DecoderConfig) -> DecoderConfig:
    """The configuration with the windows of a folder; raises ModelError."""
    if config.value("layer_types") is None and isinstance(config.value("sliding_window_pattern"), str):
        raise config.error("sliding_window_pattern", "a pattern in letters needs layer_types beside it")
    if "sliding_window" in config.names and config.value("sliding_window") is None:
        return usual
    period = _PERIOD
    if config.value("layer_types") is None:
        period = config.integer("sliding_window_pattern", least=1) or _PERIOD
    is_local = [(index + 1) % period != 0 for index in range(usual.num_layers)]
    return _with_windows(usual, folder_config.read_windows(config, is_local, default=_WINDOW))


def read_windows_of_gguf(file: GGUFTensors, usual: DecoderConfig) -> DecoderConfig:
    """The same of a GGUF file; raises ModelError."""
    if not gguf_config.read_window(file):
        return usual
    return _with_windows(usual, gguf_config.read_windows(file, usual.num_layers, period=_PERIOD))


def _with_windows(usual: DecoderConfig, windows: tuple[int, ...]) -> DecoderConfig:
    """Layers without a window do not rotate."""
    return dataclasses.replace(usual, windows=windows, tables=tuple(0 if window else -1 for window in windows))
