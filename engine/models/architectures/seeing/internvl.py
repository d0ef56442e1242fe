"""The InternVL 3 architecture (Zhu et al., "InternVL3", 2025): text models of other families, and tiles of pictures."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Self, cast

from engine.models.architectures.llama import Llama
from engine.models.architectures.qwen2 import Qwen2, read_windows
from engine.models.architectures.qwen3 import Qwen3
from engine.models.architectures.seeing.seeing_decoder import SeeingDecoder, text_names, text_prefix
from engine.models.encoders.internvl_vision import InternVLVision
from engine.models.parts import folder_config
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class InternVL(SeeingDecoder):
    """A decoder with an encoder of tiles; `from_folder` makes one of its kinds, by the text model."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        text = config.table("text_config")
        if text is None:
            raise config.error("text_config", "it is missing")
        model_type = text.text("model_type") or "qwen2"
        kind = _KINDS.get(model_type)
        if kind is None:
            raise text.error("model_type", f"of this architecture it must be one of {', '.join(_KINDS)}")
        # An output matrix that is stored is used, and published configurations do not all say whether there is one.
        is_tied = folder_config.read_flag(config, "tie_word_embeddings", True)
        text = text.with_defaults({"tie_word_embeddings": is_tied})
        made = folder_config.read_decoder(text, text_names(tensor_names), model_type)
        if issubclass(kind, Qwen2 | Qwen3):
            windows = read_windows(text, made.num_layers)
            made = replace(made, windows=windows, has_qkv_bias=issubclass(kind, Qwen2))
        vision = InternVLVision.read(config, tensor_names, made.hidden_size)
        return cast(Self, kind(made, text_prefix(tensor_names), vision))


@dataclass(frozen=True)
class InternVLQwen2(InternVL, Qwen2):
    """InternVL 3 with Qwen2.5."""


@dataclass(frozen=True)
class InternVLQwen3(InternVL, Qwen3):
    """InternVL 3.5 with Qwen3."""


@dataclass(frozen=True)
class InternVLLlama(InternVL, Llama):
    """InternVL 2.5 with Llama, as which InternLM2 is converted."""


_KINDS: Mapping[str, type[InternVL]] = {"qwen2": InternVLQwen2, "qwen3": InternVLQwen3, "llama": InternVLLlama}
