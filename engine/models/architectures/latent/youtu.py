"""The Youtu architecture (Tencent Youtu Lab, "Youtu-LLM 2B", 2025)."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.routed import latent_config
from engine.models.parts.routed.dense_latent_decoder import DenseLatentDecoder
from engine.models.parts.routed.latent_config import with_latents
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: transformers' YoutuConfig.
_DEFAULTS: dict[str, Any] = {"tie_word_embeddings": True}


@dataclass(frozen=True)
class Youtu(DenseLatentDecoder):
    """DeepSeek-V3's attention, and feed-forward blocks without experts."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual, sizes = latent_config.read_folder(config.with_defaults(_DEFAULTS), tensor_names, "youtu")
        return cls(with_latents(ExpertsConfig(**vars(usual)), sizes))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual, sizes = latent_config.read_gguf(file)
        return cls(with_latents(ExpertsConfig(**vars(usual)), sizes), "blk.0.attn_kv_b.weight" in file.names)
