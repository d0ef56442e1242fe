"""Mistral's architecture (Jiang et al., "Mistral 7B", 2023) and that of Ministral: Llama's with sliding windows.

GGUF files name it as Llama's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar, Self

from engine.models.architectures.llama import Llama
from engine.models.parts import folder_config
from engine.weights.formats.model_folder import JsonFile

_DEFAULT_WINDOW = 4096  # of transformers' classes, where a configuration leaves it out


@dataclass(frozen=True)
class Mistral(Llama):
    """Llama's layers, with one window in all of them."""

    model_type: ClassVar[str] = "mistral"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of transformers' class of this architecture."""
        usual = folder_config.read_decoder(config, tensor_names, cls.model_type)
        windows = folder_config.read_windows(config, [True] * usual.num_layers, default=_DEFAULT_WINDOW)
        return cls(dataclasses.replace(usual, windows=windows))


@dataclass(frozen=True)
class Ministral(Mistral):
    """The same with `layer_types`, which say of each layer whether it has the window."""

    model_type = "ministral"
