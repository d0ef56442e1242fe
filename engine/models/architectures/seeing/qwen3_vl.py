"""The Qwen3-VL architecture (Qwen Team, "Qwen3-VL Technical Report", 2025): Qwen3, M-RoPE, and pictures."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.models.architectures.qwen3 import Qwen3
from engine.models.architectures.seeing.mrope import read_mrope, read_mrope_of_gguf
from engine.models.architectures.seeing.seeing_decoder import SeeingDecoder, text_of, text_prefix
from engine.models.encoders.qwen.qwen3_vision import Qwen3Vision
from engine.models.parts import folder_config, gguf_config
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: transformers' Qwen3VLTextConfig.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 22_016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 128_000,
}  # fmt: skip
THETA = 500_000.0
SECTIONS = (24, 20, 20)  # pairs of features that are rotated by time, row and column


@dataclass(frozen=True)
class Qwen3VL(SeeingDecoder, Qwen3):
    """Qwen3 whose tokens of pictures are rotated by their rows and columns."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        text = text_of(config, ("qwen3_vl_text",)).with_defaults(_DEFAULTS)
        rotary = read_mrope(
            text, folder_config.read_sizes(text)["head_dim"],
            default_theta=THETA, default_sections=SECTIONS, is_interleaved=True,
        )  # fmt: skip
        usual = folder_config.read_decoder(text, tensor_names, "qwen3_vl", rotary=rotary)
        return cls(usual, text_prefix(tensor_names), Qwen3Vision.read(config, tensor_names, usual.hidden_size))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file)
        rotary = read_mrope_of_gguf(file, usual.rotary[0], is_interleaved=True)
        return cls(dataclasses.replace(usual, rotary=(rotary,)))
