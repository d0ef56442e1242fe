"""The first Gemma architecture (Gemma Team, "Gemma: Open Models Based on Gemini Research and Technology", 2024)."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.backends.base.operands import Activation
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder
from engine.models.parts.decoder_config import DecoderConfig
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.tensors import OneMore, Transform

# Where config.json says nothing; source: transformers' GemmaConfig.
_DEFAULTS: dict[str, Any] = {"head_dim": 256, "hidden_act": "gelu_pytorch_tanh"}
# Files that were published first say "gelu", and mean its approximation too.
_ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")


@dataclass(frozen=True)
class Gemma(Decoder):
    """Llama's layers with scaled embeddings, GELU, and norms whose files hold the differences from 1."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        if config.text("hidden_activation") not in (None, "gelu_pytorch_tanh"):
            raise config.error("hidden_activation", 'of this architecture it must be "gelu_pytorch_tanh"')
        if config.flag("use_bidirectional_attention"):
            raise config.error("use_bidirectional_attention", "attention to what comes later is not served")
        return cls(
            _of_gemma(folder_config.read_decoder(config, tensor_names, "gemma", is_tied=True, hidden_act=_ACTIVATIONS))
        )

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(_of_gemma(gguf_config.read_decoder(file)))

    def norm_transform_of_folder(self) -> Transform | None:
        return OneMore


def _of_gemma(usual: DecoderConfig) -> DecoderConfig:
    return dataclasses.replace(usual, activation=Activation.GELU_TANH, embedding_scale=usual.hidden_size**0.5)
