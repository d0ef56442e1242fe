"""The Llama 4 architecture (Meta, "The Llama 4 herd", 2025) with its pictures."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Self

from engine.models.architectures.llamas.llama4 import Llama4
from engine.models.encoders.llama4_vision import Llama4Vision
from engine.models.encoders.vision_encoder import VisionEncoder
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf


@dataclass(frozen=True)
class SeeingLlama4(Llama4):
    """Llama 4, and an encoder of tiles."""

    vision: VisionEncoder | None = None

    @property
    def encoder(self) -> VisionEncoder | None:
        return self.vision

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """As `Llama4.from_folder`, with the encoder in a folder of transformers' class with pictures."""
        made = super().from_folder(config, tensor_names)
        if config.table("vision_config") is None:
            return made
        return replace(made, vision=Llama4Vision.read(config, tensor_names, made.config.hidden_size))

    def leaves(self) -> tuple[Leaf, ...]:
        return super().leaves() + (() if self.vision is None else self.vision.leaves())
