"""The Arcee architecture of AFM-4.5B (Arcee AI, "Arcee Foundation Models", 2025)."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.parts import folder_config
from engine.models.parts.plain_mlp import PlainMlpDecoder
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Arcee(PlainMlpDecoder):
    """Llama's attention, and feed-forward blocks of squared ReLU without gates."""

    is_paired_in_gguf = True
    squares_relu = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        return cls(folder_config.read_decoder(config, tensor_names, "arcee", hidden_act="relu2", default_epsilon=1e-5))
