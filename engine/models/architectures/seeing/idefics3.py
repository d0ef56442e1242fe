"""The Idefics 3 architecture (Laurençon et al., "Building and better understanding vision-language models", 2024).

SmolVLM (Marafioti et al., "SmolVLM: Redefining small and efficient multimodal models", 2025) has it too.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.models.architectures.llama import Llama
from engine.models.architectures.seeing.seeing_decoder import SeeingDecoder, text_of, text_prefix
from engine.models.encoders.idefics3_vision import Idefics3Vision
from engine.models.parts import folder_config
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: transformers' LlamaConfig and Idefics3Config.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
}  # fmt: skip


@dataclass(frozen=True)
class Idefics3(SeeingDecoder, Llama):
    """Llama, and an encoder of tiles."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of the text in transformers' class with pictures."""
        text = text_of(config, (cls.model_type,)).with_defaults(_DEFAULTS)
        usual = folder_config.read_decoder(text, tensor_names, cls.model_type)
        return cls(usual, text_prefix(tensor_names), Idefics3Vision.read(config, tensor_names, usual.hidden_size))
