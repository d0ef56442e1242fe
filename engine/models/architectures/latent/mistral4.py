"""The architecture of Mistral Small 4 (Mistral AI, 2026)."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.parts import gguf_config
from engine.models.parts.rotary_config import rope_tables
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed import latent_config
from engine.models.parts.routed.latent_config import with_latents
from engine.models.parts.routed.latent_decoder import LatentDecoder
from engine.models.parts.routing import Scoring
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Mistral4(LatentDecoder):
    """Latent attention whose queries grow with their position, as in Llama 4, and experts in all or most layers."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual, sizes = latent_config.read_folder(config, tensor_names, "mistral4")
        made = routed_config.read_folder(config, usual, scoring=Scoring.SOFTMAX, has_choice_bias=False)
        growth, original = 0.0, usual.context_length
        for table in rope_tables(config):
            growth = table.number("llama_4_scaling_beta") or growth
            original = table.integer("original_max_position_embeddings", least=1) or original
        return cls(with_latents(made, sizes, query_growth=growth, original_context=original))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual, sizes = latent_config.read_gguf(file)
        made = routed_config.read_gguf(file, usual, scoring=Scoring.SOFTMAX, normalises_shares=True)
        original = file.fields.integer("rope.scaling.original_context_length") or usual.context_length
        growth = gguf_config.read_multiplier(file, "attention.temperature_scale", 0.0)
        return cls(with_latents(made, sizes, query_growth=growth, original_context=original))
