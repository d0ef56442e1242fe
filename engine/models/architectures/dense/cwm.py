"""The architecture of the Code World Model (FAIR CodeGen team, "CWM", 2025)."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.models.architectures.llama import Llama
from engine.models.parts import folder_config
from engine.weights.formats.model_folder import JsonFile

_PERIOD = 4  # the first of so many layers sees all, where a configuration does not list them
# Where config.json says nothing; source: transformers' CwmConfig.
_DEFAULTS: dict[str, Any] = {"sliding_window": 8192, "attention_bias": False}


@dataclass(frozen=True)
class Cwm(Llama):
    """Llama's layers, most of them with windows."""

    model_type = "cwm"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        usual = folder_config.read_decoder(config, tensor_names, cls.model_type, default_theta=1_000_000.0)
        is_local = [layer % _PERIOD != 0 for layer in range(usual.num_layers)]
        return cls(dataclasses.replace(usual, windows=folder_config.read_windows(config, is_local)))
