"""The EmbeddingGemma architecture (Vera et al., "EmbeddingGemma", 2025): Gemma 3 in which tokens see what follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar, Self

from engine.models.architectures.gemma3 import Gemma3
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_BOTH_WAYS = "use_bidirectional_attention"


@dataclass(frozen=True)
class GemmaEmbedding(Gemma3):
    """Gemma 3 as an encoder; its windows reach half as far, on either side."""

    is_encoder: ClassVar[bool] = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if not config.flag(_BOTH_WAYS):
            raise config.error(_BOTH_WAYS, "of a Gemma 3 without an output matrix it must be true")
        return super().from_folder(config.with_values({_BOTH_WAYS: False}), tensor_names)._with_half_windows()

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return super().from_gguf(file)._with_half_windows()

    def _with_half_windows(self) -> Self:
        windows = tuple(window and window // 2 + 1 for window in self.config.windows)
        return dataclasses.replace(self, config=dataclasses.replace(self.config, windows=windows))
