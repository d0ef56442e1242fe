"""The architecture of Mistral Small 4 (Mistral AI, 2026)."""

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Self

import jax

from engine.backends.base.token_layout import TokenLayout
from engine.models.architectures.mistral import read_growth, read_growth_of_gguf, with_grown_queries
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed import latent_config
from engine.models.parts.routed.joined_experts import joined_experts_of, with_joined_experts
from engine.models.parts.routed.latent_config import LatentConfig, with_latents
from engine.models.parts.routed.latent_decoder import LatentDecoder
from engine.models.parts.routing import Scoring
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Part


@dataclass(frozen=True, kw_only=True)
class Mistral4Config(LatentConfig):
    """A mixture's with latent attention, and the growth of queries, as that of Ministral 3."""

    query_growth: float
    original_context: int


@dataclass(frozen=True)
class Mistral4(LatentDecoder):
    """Latent attention whose queries grow with their position, as in Llama 4; experts, whose shares are a softmax."""

    config: Mistral4Config
    # The formats of files in which an expert's gate and up are one tensor; they say nothing about the model itself.
    joined_experts: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual, sizes = latent_config.read_folder(config, tensor_names, "mistral4")
        routed = routed_config.read_folder(config, usual, scoring=Scoring.SOFTMAX, has_choice_bias=False)
        made = _growing(with_latents(routed, sizes), *read_growth(config, usual.context_length))
        return cls(made, joined_experts=joined_experts_of(tensor_names, "safetensors"))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual, sizes = latent_config.read_gguf(file)
        routed = routed_config.read_gguf(file, usual, scoring=Scoring.SOFTMAX, normalises_shares=True)
        made = _growing(with_latents(routed, sizes), *read_growth_of_gguf(file, usual.context_length))
        return cls(made, "blk.0.attn_kv_b.weight" in file.names, joined_experts_of(file.names, "gguf"))

    def expert_parts(self, hidden: int, inner: int) -> tuple[Part, Part, Part]:
        return with_joined_experts(super().expert_parts(hidden, inner), self.joined_experts, inner)

    def attention_input(self, qkv: jax.Array, layout: TokenLayout) -> jax.Array:
        config = self.config
        return with_grown_queries(qkv, layout.positions, config.q_size, config.query_growth, config.original_context)


def _growing(made: LatentConfig, growth: float, original_context: int) -> Mistral4Config:
    return Mistral4Config(**vars(made), query_growth=growth, original_context=original_context)
