"""The Qwen2.5-VL architecture (Qwen Team, "Qwen2.5-VL Technical Report", 2025): Qwen2.5, M-RoPE, and pictures."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.models.architectures.qwen2 import Qwen2, read_windows
from engine.models.architectures.seeing.mrope import read_mrope, read_mrope_of_gguf
from engine.models.architectures.seeing.seeing_decoder import SeeingDecoder, text_of, text_prefix
from engine.models.encoders.qwen.qwen2_5_vision import Qwen25Vision
from engine.models.parts import folder_config, gguf_config
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: transformers' Qwen2_5_VLTextConfig.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 152_064, "hidden_size": 8192, "intermediate_size": 29_568, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5,
}  # fmt: skip
_THETA = 1_000_000.0
_SECTIONS = (16, 24, 24)  # pairs of features that are rotated by time, row and column


@dataclass(frozen=True)
class Qwen25VL(SeeingDecoder, Qwen2):
    """Qwen2.5 whose tokens of pictures are rotated by their rows and columns."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of the text, which stand in a table since version 4.52 of transformers."""
        text = text_of(config, ("qwen2_5_vl", "qwen2_5_vl_text")).with_defaults(_DEFAULTS)
        rotary = read_mrope(
            text, folder_config.read_sizes(text)["head_dim"],
            default_theta=_THETA, default_sections=_SECTIONS, is_interleaved=False,
        )  # fmt: skip
        usual = folder_config.read_decoder(text, tensor_names, "qwen2_5_vl", rotary=rotary)
        usual = dataclasses.replace(usual, windows=read_windows(text, usual.num_layers), has_qkv_bias=True)
        return cls(usual, text_prefix(tensor_names), Qwen25Vision.read(config, tensor_names, usual.hidden_size))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file)
        rotary = read_mrope_of_gguf(file, usual.rotary[0], is_interleaved=False)
        return cls(dataclasses.replace(usual, rotary=(rotary,), has_qkv_bias=True))
