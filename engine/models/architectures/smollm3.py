"""The SmolLM3 architecture (Bakouch et al., "SmolLM3", 2025)."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_INTERVAL = 4  # every fourth layer does not rotate, where a configuration does not list them, and in GGUF files


@dataclass(frozen=True)
class SmolLM3(Decoder):
    """Llama's layers, some of which do not rotate (Yang et al., "Rope to Nope and back again", 2025)."""

    is_paired_in_gguf = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(config, tensor_names, "smollm3", is_tied=True, default_theta=2000000.0)
        rotates = _read_rotating(config, usual.num_layers)
        windows = usual.windows
        if config.flag("use_sliding_window"):
            windows = folder_config.read_windows(config, [not each for each in rotates])
        return cls(dataclasses.replace(usual, tables=_tables(rotates), windows=windows))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file)
        return cls(dataclasses.replace(usual, tables=_tables(_rotating(usual.num_layers, _INTERVAL))))


def _read_rotating(config: JsonFile, num_layers: int) -> list[bool]:
    """Which layers rotate; in the list they are 1, despite its name. Raises ModelError if a field is wrong."""
    listed = config.value("no_rope_layers")
    if listed is None:
        return _rotating(num_layers, config.integer("no_rope_layer_interval", least=1) or _INTERVAL)
    if not isinstance(listed, list) or len(listed) < num_layers or any(each not in (0, 1) for each in listed):
        raise config.error("no_rope_layers", f"it must list 0 or 1 for each of {num_layers} layers")
    return [each == 1 for each in listed[:num_layers]]


def _rotating(num_layers: int, interval: int) -> list[bool]:
    return [(layer + 1) % interval != 0 for layer in range(num_layers)]


def _tables(rotates: list[bool]) -> tuple[int, ...]:
    return tuple(0 if each else -1 for each in rotates)
