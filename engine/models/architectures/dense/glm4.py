"""The GLM-4 architecture (GLM team, "ChatGLM: A Family of Large Language Models", 2024) as of GLM-4-0414."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder, Names, joined
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Part

# Where config.json says nothing; source: transformers' Glm4Config.
_DEFAULTS: dict[str, Any] = {"head_dim": 128, "attention_bias": True, "partial_rotary_factor": 0.5}


@dataclass(frozen=True)
class Glm4(Decoder):
    """Norms before and behind each block; adjacent features of a part of each head are rotated."""

    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("input_layernorm", "attn_norm"),
        "attention_output_norm": ("post_self_attn_layernorm", "post_attention_norm"),
        "mlp_norm": ("post_attention_layernorm", "ffn_norm"),
        "down_norm": ("post_mlp_layernorm", "post_ffw_norm"),
    }
    is_paired_in_folder = True
    is_paired_in_gguf = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(
            config.with_defaults(_DEFAULTS), tensor_names, "glm4", rotates_a_part=True, default_epsilon=1.5625e-7
        )
        return cls(dataclasses.replace(usual, has_attention_output_bias=False))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(gguf_config.read_decoder(file, rotates_a_part=True))

    def gate_up_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """As `Decoder.gate_up_parts`: rows of one matrix."""
        return joined((self.config.intermediate_size,) * 2, inputs, ("mlp.gate_up_proj", "ffn_up"))
