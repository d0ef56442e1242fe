"""The StarCoder2 architecture (Lozhkov et al., "StarCoder 2 and The Stack v2", 2024)."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar, Self

from engine.backends.base.operands import Activation, NormKind
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.plain_mlp import PlainMlpDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Starcoder2(PlainMlpDecoder):
    """LayerNorms and biases everywhere, feed-forward blocks of GELU without gates, and perhaps one window."""

    norm_kind = NormKind.LAYER
    has_norm_bias = True
    up_names: ClassVar[Names] = ("mlp.c_fc", "ffn_up")
    down_names: ClassVar[Names] = ("mlp.c_proj", "ffn_down")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(
            config, tensor_names, "starcoder2", is_tied=True, hidden_act="gelu_pytorch_tanh",
            epsilon_key="norm_epsilon", default_epsilon=1e-5,
        )  # fmt: skip
        has_bias = folder_config.read_flag(config, "use_bias", True)
        return cls(
            _with_gelu(
                dataclasses.replace(
                    usual,
                    windows=folder_config.read_windows(config, [True] * usual.num_layers),
                    has_qkv_bias=has_bias,
                    has_attention_output_bias=has_bias,
                    has_mlp_bias=has_bias,
                )
            )
        )

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(_with_gelu(gguf_config.read_decoder(file, epsilon_key="attention.layer_norm_epsilon")))


def _with_gelu(usual: DecoderConfig) -> DecoderConfig:
    return dataclasses.replace(usual, activation=Activation.GELU_TANH)
