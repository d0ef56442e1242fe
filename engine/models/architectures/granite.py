"""The Granite architecture of IBM's dense language models from 3.0 on (Granite team, "Granite 3.0", 2024)."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar

from engine.interface.errors import ModelError
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder, Names
from engine.models.parts.decoder_config import DecoderConfig
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

Config = TypeVar("Config", bound=DecoderConfig)


@dataclass(frozen=True)
class Granite(Decoder):
    """Llama's layers with multipliers of embeddings, scores, what a block adds, and logits."""

    is_paired_in_gguf = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        return cls(with_multipliers(config, folder_config.read_decoder(config, tensor_names, "granite")))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(with_multipliers_of_gguf(file, gguf_config.read_decoder(file)))


@dataclass(frozen=True)
class HyperClovaX(Granite):
    """HyperCLOVA X SEED Think (NAVER, 2025): logits that are multiplied, and norms behind the blocks too."""

    # Whether there are norms behind the blocks.
    has_output_norms: bool = True

    norms: ClassVar[Mapping[str, Names]] = {
        **Decoder.norms,
        "attention_output_norm": ("post_norm1", "post_attention_norm"),
        "down_norm": ("post_norm2", "post_ffw_norm"),
    }

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = with_multipliers(config, folder_config.read_decoder(config, tensor_names, "hyperclovax"))
        scale = config.positive_number("attention_multiplier") or usual.head_dim**-0.5
        made = dataclasses.replace(usual, attention_scale=scale, logit_scale=1 / usual.logit_scale)
        return cls(made, folder_config.read_flag(config, "use_post_norm", True))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        raise ModelError("no GGUF files of HyperCLOVA X are known")

    def norm_names(self) -> Mapping[str, Names]:
        return self.norms if self.has_output_norms else Decoder.norms


def with_multipliers(config: JsonFile, usual: DecoderConfig) -> DecoderConfig:
    """Adds the multipliers of `config.json`; raises ModelError."""

    def multiplier(key: str) -> float:
        return config.positive_number(key) or 1.0

    return dataclasses.replace(
        usual,
        embedding_scale=multiplier("embedding_multiplier"),
        attention_scale=multiplier("attention_multiplier"),
        residual_scale=multiplier("residual_multiplier"),
        logit_scale=1 / multiplier("logits_scaling"),
    )


def with_multipliers_of_gguf(file: GGUFTensors, usual: Config) -> Config:
    """Adds the multipliers of a GGUF file; raises ModelError."""
    return dataclasses.replace(
        usual,
        embedding_scale=gguf_config.read_multiplier(file, "embedding_scale"),
        attention_scale=gguf_config.read_multiplier(file, "attention.scale", usual.attention_scale),
        residual_scale=gguf_config.read_multiplier(file, "residual_scale"),
        logit_scale=1 / gguf_config.read_multiplier(file, "logit_scale"),
    )
