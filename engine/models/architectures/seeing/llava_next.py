"""The LLaVA-NeXT architecture (Liu et al., 2024), of Granite Vision (IBM, 2025) too: text models of other families."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from engine.models.architectures.granite import Granite
from engine.models.architectures.llama import Llama
from engine.models.architectures.mistral import Mistral
from engine.models.architectures.qwen2 import Qwen2
from engine.models.architectures.seeing.seeing_decoder import (
    SeeingDecoder,
    refuse_other_type,
    text_names,
    text_prefix,
)
from engine.models.encoders.llava_next_vision import LlavaNextVision
from engine.models.parts.decoder import Decoder
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: transformers' configurations of these text models.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
}  # fmt: skip
_DEFAULTS_OF_KINDS: Mapping[str, dict[str, Any]] = {
    "mistral": {"intermediate_size": 14_336, "num_key_value_heads": 8, "max_position_embeddings": 131_072},
    "qwen2": {"vocab_size": 151_936, "intermediate_size": 22_016, "max_position_embeddings": 32_768},
}


@dataclass(frozen=True)
class LlavaNext(SeeingDecoder):
    """A decoder with an encoder of tiles; `from_folder` makes one of its kinds, by the text model."""

    derived_tensors = re.compile(SeeingDecoder.derived_tensors.pattern + r"|(model\.)?image_newline")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        refuse_other_type(config, "llava_next")
        text = config.table("text_config")
        if text is None:
            raise config.error("text_config", "it is missing")
        model_type = text.text("model_type") or "llama"
        if model_type not in _KINDS:
            raise text.error("model_type", f"of this architecture it must be one of {', '.join(_KINDS)}")
        of_text, kind = _KINDS[model_type]
        text = text.with_defaults({**_DEFAULTS, **_DEFAULTS_OF_KINDS.get(model_type, {})})
        if config.flag("tie_word_embeddings") is not None:
            text = text.with_values({"tie_word_embeddings": config.flag("tie_word_embeddings")})
        # transformers' class has an output matrix of its own, whose logits no multiplier of the text model divides.
        made = replace(of_text.from_folder(text, text_names(tensor_names)).config, logit_scale=1.0)
        vision = LlavaNextVision.read(config, tensor_names, made.hidden_size, made.embedding_scale)
        return cast(Self, kind(made, folder_prefix=text_prefix(tensor_names), vision=vision))


@dataclass(frozen=True)
class LlavaNextGranite(LlavaNext, Granite):
    """Granite Vision, whose text model multiplies the embeddings of pictures too."""


@dataclass(frozen=True)
class LlavaNextLlama(LlavaNext, Llama):
    """LLaVA-NeXT with Vicuna or Llama 3."""


@dataclass(frozen=True)
class LlavaNextMistral(LlavaNext, Mistral):
    """LLaVA-NeXT with Mistral."""


@dataclass(frozen=True)
class LlavaNextQwen2(LlavaNext, Qwen2):
    """LLaVA-NeXT with Qwen1.5."""


_KINDS: Mapping[str, tuple[type[Decoder], type[LlavaNext]]] = {
    "granite": (Granite, LlavaNextGranite),
    "llama": (Llama, LlavaNextLlama),
    "mistral": (Mistral, LlavaNextMistral),
    "qwen2": (Qwen2, LlavaNextQwen2),
}
