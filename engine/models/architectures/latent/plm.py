"""The PLM architecture (Deng et al., "PLM: Efficient Peripheral Language Models", 2025)."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.plain_mlp import PlainMlpDecoder
from engine.models.parts.routed import latent_config
from engine.models.parts.routed.dense_latent_decoder import DenseLatentDecoder
from engine.models.parts.routed.latent_config import with_latents
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf

# Where config.json says nothing; source: the makers' configuration class.
_DEFAULTS: dict[str, Any] = {"tie_word_embeddings": True}


@dataclass(frozen=True)
class Plm(DenseLatentDecoder, PlainMlpDecoder):
    """DeepSeek-V2's attention, and feed-forward blocks of squared ReLU without gates."""

    squares_relu = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.text("hidden_act") not in (None, "relu2"):
            raise config.error("hidden_act", 'of this architecture it must be "relu2"')
        config = config.with_defaults(_DEFAULTS).with_values({"hidden_act": None})
        usual, sizes = latent_config.read_folder(config, tensor_names, "plm")
        if usual.has_mlp_bias:
            raise config.error("mlp_bias", "biases are not served for this architecture")
        return cls(with_latents(ExpertsConfig(**vars(usual)), sizes))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual, sizes = latent_config.read_gguf(file)
        return cls(with_latents(ExpertsConfig(**vars(usual)), sizes), is_joined_in_gguf=True)

    def feed_forward_leaves(self) -> list[Leaf]:
        return PlainMlpDecoder.feed_forward_leaves(self)
