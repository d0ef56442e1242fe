"""The Qwen3.5 architecture (Qwen Team, "Qwen3.5", 2026): Qwen3-Next's layers, dense or with experts, and pictures."""

import re
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from engine.models.architectures.seeing.mrope import read_axes, read_mrope_of_gguf
from engine.models.architectures.seeing.seeing_decoder import SeeingDecoder, text_prefix
from engine.models.encoders.qwen.qwen3_vision import Qwen3Vision
from engine.models.parts import folder_config
from engine.models.parts.hybrids.delta_config import DeltaConfig, read_folder, read_gguf
from engine.models.parts.hybrids.delta_decoder import DeltaDecoder
from engine.models.parts.routed.joined_experts import joined_experts_of
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_SECTIONS = (11, 11, 10)  # pairs of features that are rotated by time, row and column, where config.json says nothing


@dataclass(frozen=True)
class Qwen35(SeeingDecoder, DeltaDecoder):
    """Delta-nets whose products are stored one after the other."""

    model_type = "qwen3_5_text"
    has_experts: ClassVar[bool] = False
    # The head that predicts several tokens at once is left where it is.
    derived_tensors = re.compile(SeeingDecoder.derived_tensors.pattern + r"|mtp\..*")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of transformers' class for text, or those of the text in its class with pictures."""
        text, joined = config.table("text_config"), joined_experts_of(tensor_names, "safetensors")
        if text is None:
            return cls(cls._read(config, tensor_names), joined)
        is_tied = folder_config.read_flag(config, "tie_word_embeddings", False)
        text = text.with_defaults({"tie_word_embeddings": is_tied})
        made = cls._read(text, tensor_names)
        vision = Qwen3Vision.read(config, tensor_names, made.hidden_size, has_deep=False)
        if vision is not None:
            (rotary,) = made.rotary
            axes = read_axes(text, len(rotary.frequencies), default_sections=_SECTIONS, is_interleaved=True)
            made = replace(made, rotary=(replace(rotary, axes=axes),))
        return cls(made, joined, text_prefix(tensor_names), vision)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """As `Model.from_gguf`. The converter of the ggml project puts heads of values that share keys far apart."""
        made = read_gguf(file, is_tiled=True, has_experts=cls.has_experts)
        made = replace(made, rotary=(read_mrope_of_gguf(file, made.rotary[0], is_interleaved=True),))
        return cls(made, joined_experts_of(file.names, "gguf"))

    @classmethod
    def _read(cls, text: JsonFile, tensor_names: Set[str]) -> DeltaConfig:
        return read_folder(text, tensor_names, cls.model_type, has_experts=cls.has_experts)


@dataclass(frozen=True)
class Qwen35Moe(Qwen35):
    """The same with experts."""

    model_type = "qwen3_5_moe_text"
    has_experts = True
