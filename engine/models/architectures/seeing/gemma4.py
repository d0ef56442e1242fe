"""The Gemma 4 architecture (Gemma Team, "Gemma 4", 2026) with its pictures."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Self

from engine.models.architectures.gemma4.decoder import Gemma4
from engine.models.encoders.gemma4_vision import Gemma4Vision
from engine.models.encoders.vision_encoder import VisionEncoder
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf

_ALL_WAYS = "vision"  # what a configuration says where the tokens of a picture see each other in both directions


@dataclass(frozen=True)
class SeeingGemma4(Gemma4):
    """Gemma 4, and an encoder; of some sizes the tokens of a picture see those behind them, in layers with a window."""

    vision: VisionEncoder | None = None

    @property
    def encoder(self) -> VisionEncoder | None:
        return self.vision

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """As `Gemma4.from_folder`, with the encoder in a folder of transformers' class with pictures."""
        made, text = super().from_folder(config, tensor_names), config.table("text_config")
        both_ways = text is not None and text.text("use_bidirectional_attention") == _ALL_WAYS
        vision = Gemma4Vision.read(config, tensor_names, made.config.hidden_size, sees_both_ways=both_ways)
        if text is None or vision is None:
            return made
        if text.integer("pad_token_id", least=0) not in (None, 0):
            raise text.error("pad_token_id", "with pictures it must be 0")
        return replace(made, vision=vision)

    def leaves(self) -> tuple[Leaf, ...]:
        return super().leaves() + (() if self.vision is None else self.vision.leaves())
