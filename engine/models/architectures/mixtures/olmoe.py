"""The OLMoE architecture (Muennighoff et al., "OLMoE: Open Mixture-of-Experts Language Models", 2024)."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.parts import folder_config
from engine.models.parts.decoder import QueryKeyNorm
from engine.models.parts.experts import ExpertsDecoder, read_folder, read_gguf
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Olmoe(ExpertsDecoder):
    """Norms before each block, and of queries and keys over all heads at once."""

    query_key_norm = QueryKeyNorm.ALL

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.value("clip_qkv") is not None:
            raise config.error("clip_qkv", "clipped queries, keys and values are not served")
        usual = folder_config.read_decoder(config, tensor_names, "olmoe")
        normalises = folder_config.read_flag(config, "norm_topk_prob", False)
        return cls(read_folder(config, usual, normalises_shares=normalises))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        if file.fields.value("attention.clamp_kqv"):
            raise file.fields.error("attention.clamp_kqv", "clipped queries, keys and values are not served")
        return cls(read_gguf(file, normalises_shares=False))
