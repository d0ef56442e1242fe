"""The architectures of Cohere's Command R (2024), R7B and A (Cohere team, "Command A", 2025), and of Aya."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, Self

from engine.backends.base.operands import NormKind
from engine.models.architectures.head_norms.head_norms import GGUF_NORM, HeadNormsDecoder
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names
from engine.models.parts.decoder_config import DecoderConfig
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_LOGIT_SCALE = 0.0625  # of transformers' classes, where a configuration leaves it out
_PERIOD = 4  # of the second architecture: the last of so many layers sees all, where a file does not say
_WINDOW = 4096


@dataclass(frozen=True)
class Cohere(HeadNormsDecoder):
    """Blocks side by side behind one LayerNorm without biases; adjacent features are rotated, and logits scaled.

    Command R+ norms each head of queries and keys too.
    """

    norms: ClassVar[Mapping[str, Names]] = {"attention_norm": ("input_layernorm", "attn_norm")}
    model_type = "cohere"
    norm_kind = NormKind.LAYER
    is_paired_in_folder = True
    is_paired_in_gguf = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        has_norms = folder_config.read_flag(config, "use_qk_norm", False)
        return cls.made(read_folder(config, tensor_names, cls.model_type), has_head_norms=has_norms)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls.made(read_gguf(file), has_head_norms=GGUF_NORM in file.names)


@dataclass(frozen=True)
class Cohere2(Cohere):
    """The same with windows in most layers; those without one do not rotate."""

    model_type = "cohere2"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = read_folder(config, tensor_names, cls.model_type)
        period = config.integer("sliding_window_pattern", least=1) or _PERIOD
        is_local = [(index + 1) % period != 0 for index in range(usual.num_layers)]
        windows = folder_config.read_windows(config, is_local, default=_WINDOW)
        return cls.made(_with_windows(usual, windows), has_head_norms=False)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = read_gguf(file)
        file.fields.required_integer("attention.sliding_window", least=1)
        windows = gguf_config.read_windows(file, usual.num_layers, period=_PERIOD)
        return cls.made(_with_windows(usual, windows), has_head_norms=False)


def read_folder(config: JsonFile, tensor_names: Set[str], model_type: str) -> DecoderConfig:
    """The common part of both architectures; raises ModelError."""
    usual = folder_config.read_decoder(
        config, tensor_names, model_type, is_tied=True, epsilon_key="layer_norm_eps", default_epsilon=1e-5
    )
    logit_scale = config.positive_number("logit_scale") or _LOGIT_SCALE
    return dataclasses.replace(usual, logit_scale=logit_scale, is_parallel=True)


def read_gguf(file: GGUFTensors) -> DecoderConfig:
    """The same of a GGUF file; raises ModelError."""
    usual = gguf_config.read_decoder(file, epsilon_key="attention.layer_norm_epsilon")
    return dataclasses.replace(usual, logit_scale=gguf_config.read_multiplier(file, "logit_scale"), is_parallel=True)


def _with_windows(usual: DecoderConfig, windows: tuple[int, ...]) -> DecoderConfig:
    """Layers without a window do not rotate."""
    return dataclasses.replace(usual, windows=windows, tables=tuple(0 if window else -1 for window in windows))
