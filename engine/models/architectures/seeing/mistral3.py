"""The Mistral 3 architecture (Mistral AI, "Mistral Small 3.1" and "Ministral 3", 2025): Mistral, and pictures."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.models.architectures.llama import Llama
from engine.models.architectures.mistral import DEFAULT_WINDOW, Ministral3, read_growing
from engine.models.architectures.seeing.seeing_decoder import (
    SeeingDecoder,
    refuse_other_type,
    text_names,
    text_prefix,
)
from engine.models.encoders.pixtral_vision import PixtralVision
from engine.models.parts import folder_config
from engine.weights.formats.model_folder import JsonFile

_MISTRAL, _MINISTRAL = "mistral", "ministral3"
# Where config.json has no table of the text; source: transformers' Mistral3Config.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 131_072, "hidden_size": 5120, "intermediate_size": 32_768, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5, "rope_theta": 1e9, "sliding_window": None,
}  # fmt: skip


@dataclass(frozen=True)
class Mistral3(SeeingDecoder, Ministral3):
    """The layers of Mistral or of Ministral 3, and the encoder of Pixtral."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of either text model in transformers' class with pictures."""
        refuse_other_type(config, "mistral3")
        table = config.table("text_config")
        text = JsonFile(config.path, _DEFAULTS) if table is None else table
        is_plain = text.text("model_type") in (None, _MISTRAL)
        # An output matrix that is stored is used, and published configurations do not all say whether there is one.
        is_tied = folder_config.read_flag(config, "tie_word_embeddings", True)
        made = read_growing(
            text.with_values({"tie_word_embeddings": is_tied}), text_names(tensor_names),
            _MISTRAL if is_plain else _MINISTRAL, default_window=DEFAULT_WINDOW if is_plain else None,
        )  # fmt: skip
        vision = PixtralVision.read(config, tensor_names, made.hidden_size, made.rms_norm_eps)
        return cls(made, text_prefix(tensor_names), vision)


@dataclass(frozen=True)
class Mistral3Llama(SeeingDecoder, Llama):
    """The same with the text model that early GGUF files call Llama."""
