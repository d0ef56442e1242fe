"""The GLM-4 architecture of 2024 (GLM team, "ChatGLM: A Family of Large Language Models"), also of GLM-Edge."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any, Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder, joined
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Part
from engine.weights.tensors import in_turn, paired_rows

# Where config.json says nothing; source: transformers' GlmConfig.
_DEFAULTS: dict[str, Any] = {"head_dim": 128, "attention_bias": True, "partial_rotary_factor": 0.5}


@dataclass(frozen=True)
class Glm(Decoder):
    """Adjacent features of a part of each head are rotated; gates and ups are joined."""

    # Whether a GGUF file joins queries, keys and values; it says nothing about the model itself.
    is_joined_in_gguf: bool = field(default=False, compare=False)

    is_paired_in_folder = True
    is_paired_in_gguf = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(
            config.with_defaults(_DEFAULTS), tensor_names, "glm", rotates_a_part=True, default_epsilon=1.5625e-7
        )
        return cls(dataclasses.replace(usual, has_attention_output_bias=False))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        is_joined = "blk.0.attn_qkv.weight" in file.names
        usual = gguf_config.read_decoder(file, rotates_a_part=True)
        if is_joined:
            usual = dataclasses.replace(usual, has_qkv_bias="blk.0.attn_qkv.bias" in file.names)
        return cls(usual, is_joined)

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        parts, config = super().qkv_parts(inputs), self.config
        if not self.is_joined_in_gguf:
            return parts
        paired = paired_rows(config.head_dim, config.rotary[0].rotary_dim)
        files = joined((config.q_size, config.kv_size, config.kv_size), inputs, ("", "attn_qkv"))
        made = []
        for part, in_file, is_rotated in zip(parts, files, (True, True, False), strict=True):
            stored = in_file.stored["gguf"]
            assert stored.transform is not None
            if is_rotated:
                stored = dataclasses.replace(stored, transform=in_turn(stored.transform, paired))
            made.append(dataclasses.replace(part, stored={**part.stored, "gguf": stored}))
        return tuple(made)

    def gate_up_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """As `Decoder.gate_up_parts`: rows of one matrix."""
        return joined((self.config.intermediate_size,) * 2, inputs, ("mlp.gate_up_proj", "ffn_up"))
