"""The StableLM architecture (Bellagente et al., "Stable LM 2 1.6B Technical Report", 2024)."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.backends.base.operands import NormKind
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: transformers' StableLmConfig.
_DEFAULTS: dict[str, Any] = {"partial_rotary_factor": 0.25}


@dataclass(frozen=True)
class StableLm(Decoder):
    """Llama's layers with LayerNorms, and a rotation of a part of each head."""

    norm_kind = NormKind.LAYER
    has_norm_bias = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        for key in ("use_parallel_residual", "qk_layernorm"):
            if config.flag(key):
                raise config.error(key, "it is not served")
        usual = folder_config.read_decoder(
            config.with_defaults(_DEFAULTS), tensor_names, "stablelm", rotates_a_part=True,
            epsilon_key="layer_norm_eps", default_epsilon=1e-5,
        )  # fmt: skip
        has_bias = folder_config.read_flag(config, "use_qkv_bias", False)
        return cls(dataclasses.replace(usual, has_qkv_bias=has_bias))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Files of models with blocks side by side have one norm in a layer, and so lack a tensor."""
        epsilon_key = "attention.layer_norm_epsilon"
        return cls(gguf_config.read_decoder(file, rotates_a_part=True, epsilon_key=epsilon_key))
