"""The Granite architecture of IBM's dense language models from 3.0 on (Granite team, "Granite 3.0", 2024)."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Granite(Decoder):
    """Llama's layers with multipliers of embeddings, scores, what a block adds, and logits."""

    is_paired_in_gguf = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(config, tensor_names, "granite")

        def multiplier(key: str) -> float:
            return config.positive_number(key) or 1.0

        return cls(
            dataclasses.replace(
                usual,
                embedding_scale=multiplier("embedding_multiplier"),
                attention_scale=multiplier("attention_multiplier"),
                residual_scale=multiplier("residual_multiplier"),
                logit_scale=1 / multiplier("logits_scaling"),
            )
        )

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file)
        return cls(
            dataclasses.replace(
                usual,
                embedding_scale=gguf_config.read_multiplier(file, "embedding_scale"),
                attention_scale=gguf_config.read_multiplier(file, "attention.scale", usual.attention_scale),
                residual_scale=gguf_config.read_multiplier(file, "residual_scale"),
                logit_scale=1 / gguf_config.read_multiplier(file, "logit_scale"),
            )
        )
