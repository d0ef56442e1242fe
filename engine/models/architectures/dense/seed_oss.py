"""The Seed-OSS architecture (ByteDance Seed team, 2025)."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.models.parts import folder_config
from engine.models.parts.decoder import Decoder, Names
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: transformers' SeedOssConfig.
_DEFAULTS: dict[str, Any] = {"head_dim": 128, "attention_bias": True}


@dataclass(frozen=True)
class SeedOss(Decoder):
    """Llama's layers with biases on queries, keys and values."""

    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("input_layernorm", "attn_norm"),
        "mlp_norm": ("post_attention_layernorm", "post_attention_norm"),
    }

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(config.with_defaults(_DEFAULTS), tensor_names, "seed_oss")
        has_output_bias = folder_config.read_flag(config, "attention_out_bias", False)
        return cls(dataclasses.replace(usual, has_attention_output_bias=has_output_bias))
