"""The ERNIE 4.5 architecture (Baidu-ERNIE team, "ERNIE 4.5 Technical Report", 2025) of its dense models."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.models.parts import folder_config
from engine.models.parts.decoder import Decoder
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: transformers' Ernie4_5Config.
_DEFAULTS: dict[str, Any] = {"head_dim": 128}


@dataclass(frozen=True)
class Ernie45(Decoder):
    """Llama's layers, in which adjacent features are rotated, and all products have biases or none has."""

    is_paired_in_folder = True
    is_paired_in_gguf = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(
            config.with_defaults(_DEFAULTS), tensor_names, "ernie4_5", is_tied=True, default_epsilon=1e-5
        )
        has_bias = folder_config.read_flag(config, "use_bias", False)
        return cls(
            dataclasses.replace(usual, has_qkv_bias=has_bias, has_attention_output_bias=has_bias, has_mlp_bias=has_bias)
        )
