"""The OLMo 3 architecture (OLMo team, 2025); GGUF files name it as OLMo 2's."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.architectures.olmo2 import PERIOD, Olmo2, with_windows
from engine.models.parts import folder_config
from engine.models.parts.rotary_config import read_rotaries_of_kinds
from engine.weights.formats.model_folder import JsonFile

_THETA = 500_000.0
_WINDOW = 4096  # of transformers' class, where a configuration leaves it out


@dataclass(frozen=True)
class Olmo3(Olmo2):
    """OLMo 2's layers, most of which have a window and an embedding of positions that is not stretched."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        head_dim, context = (folder_config.read_sizes(config)[key] for key in ("head_dim", "context_length"))
        full, local = read_rotaries_of_kinds(config, head_dim, context, default_theta=_THETA)
        usual = folder_config.read_decoder(config, tensor_names, "olmo3", rotary=full, default_epsilon=1e-5)
        is_local = [(index + 1) % PERIOD != 0 for index in range(usual.num_layers)]
        windows = folder_config.read_windows(config, is_local, default=_WINDOW)
        return cls(with_windows(dataclasses.replace(usual, windows=windows), local))
