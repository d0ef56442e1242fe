"""The MiniCPM3 architecture (OpenBMB, "MiniCPM3-4B", 2024)."""

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any, Self

from engine.models.architectures.llamas.minicpm import refuse_long
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.longrope import read_longrope, read_longrope_of_gguf
from engine.models.parts.routed import latent_config
from engine.models.parts.routed.dense_latent_decoder import DenseLatentDecoder
from engine.models.parts.routed.latent_config import LatentConfig, LatentSizes, with_latents
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: transformers' MiniCPM3Config.
_DEFAULTS: dict[str, Any] = {
    "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "max_position_embeddings": 32_768,
    "tie_word_embeddings": True, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    "rope_interleave": False,
}  # fmt: skip
# Of the one model that is published, which GGUF files do not state.
_SCALE_EMBEDDING, _SCALE_DEPTH, _BASE_SIZE = 12.0, 1.4, 256


@dataclass(frozen=True)
class MiniCpm3(DenseLatentDecoder):
    """Latent attention, feed-forward blocks without experts, and MiniCPM's multipliers."""

    is_paired_in_gguf = False

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        hidden, heads = (config.required_integer(key, least=1) for key in ("hidden_size", "num_attention_heads"))
        config = config.with_defaults({"v_head_dim": hidden // heads})
        context = config.required_integer("max_position_embeddings", least=2)
        rope_dim = config.required_integer("qk_rope_head_dim", least=2, most=latent_config.MAX_LATENT)
        rotary, longrope = read_longrope(config, rope_dim, context)
        refuse_long(longrope, context)
        usual, sizes = latent_config.read_folder(config, tensor_names, "minicpm3", rotary=rotary)
        scales = (config.required_positive_number(key) for key in ("scale_emb", "scale_depth", "dim_model_base"))
        return cls(_with_multipliers(usual, sizes, *scales))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        fields = file.fields
        context = fields.required_integer("context_length", least=1)
        rope_dim = fields.required_integer("rope.dimension_count", least=2, most=latent_config.MAX_LATENT)
        rotary, longrope = read_longrope_of_gguf(file, rope_dim, context)
        refuse_long(longrope, context)
        usual, sizes = latent_config.read_gguf(file, rotary=rotary)
        sizes = replace(sizes, is_paired_in_folder=False)
        made = _with_multipliers(usual, sizes, _SCALE_EMBEDDING, _SCALE_DEPTH, _BASE_SIZE)
        return cls(made, is_joined_in_gguf=True)


def _with_multipliers(
    usual: DecoderConfig, sizes: LatentSizes, scale_embedding: float, scale_depth: float, base_size: float
) -> LatentConfig:
    usual = replace(
        usual, embedding_scale=scale_embedding, residual_scale=scale_depth / usual.num_layers**0.5,
        logit_scale=base_size / usual.hidden_size,
    )  # fmt: skip
    return with_latents(ExpertsConfig(**vars(usual)), sizes)
