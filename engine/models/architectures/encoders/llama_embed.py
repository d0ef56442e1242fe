"""Llama in which tokens see what follows: Llama Embed Nemotron (Babakhin et al., "Llama-Embed-Nemotron-8B", 2025)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar, Self

from engine.models.architectures.llama import Llama
from engine.models.parts import folder_config
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class LlamaEmbed(Llama):
    """Llama as an encoder."""

    is_encoder: ClassVar[bool] = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_values({"tie_word_embeddings": True})  # it has no matrix that makes logits
        return cls(folder_config.read_decoder(config, tensor_names, "llama_bidirec", default_epsilon=1e-5))
