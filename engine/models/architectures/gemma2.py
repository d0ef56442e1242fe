"""The Gemma 2 architecture (Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024)."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from engine.backends.base.operands import Activation
from engine.interface.errors import ModelError
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder, Names
from engine.models.parts.decoder_config import DecoderConfig
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.tensors import OneMore, Transform

# Where config.json says nothing; source: transformers' Gemma2Config.
_DEFAULTS: dict[str, Any] = {
    "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
}  # fmt: skip
_GGUF_WINDOW = 4096  # where a file does not say
_PERIOD = 2  # the last of so many layers sees all
_NUM_LAYERS_27B = 46


@dataclass(frozen=True)
class Gemma2(Decoder):
    """Norms before and behind each block; a window in every second layer; soft caps of scores and logits."""

    model_type = "gemma2"
    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("input_layernorm", "attn_norm"),
        "attention_output_norm": ("post_attention_layernorm", "post_attention_norm"),
        "mlp_norm": ("pre_feedforward_layernorm", "ffn_norm"),
        "down_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
    }

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        usual = read_folder(config, tensor_names, cls.model_type)
        return cls(
            dataclasses.replace(
                usual,
                windows=folder_config.read_windows(config, is_local=are_local(usual.num_layers, _PERIOD)),
                attention_softcap=config.positive_number("attn_logit_softcapping") or 0.0,
                logit_softcap=config.positive_number("final_logit_softcapping") or 0.0,
            )
        )

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        fields, usual = file.fields, gguf_config.read_decoder(file)
        window = gguf_config.read_window(file) or _GGUF_WINDOW
        return cls(
            dataclasses.replace(
                of_gemma(usual, gguf_scalar(file, usual, _NUM_LAYERS_27B)),
                windows=tuple(window if is_local else 0 for is_local in are_local(usual.num_layers, _PERIOD)),
                attention_softcap=fields.positive_number("attn_logit_softcapping")
                or _DEFAULTS["attn_logit_softcapping"],
                logit_softcap=fields.positive_number("final_logit_softcapping") or _DEFAULTS["final_logit_softcapping"],
            )
        )

    def norm_transform_of_folder(self) -> Transform | None:
        return OneMore


@dataclass(frozen=True)
class VaultGemma(Gemma2):
    """VaultGemma (Sinha et al., "VaultGemma", 2025): norms before the blocks alone."""

    model_type = "vaultgemma"
    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("input_layernorm", "attn_norm"),
        "mlp_norm": ("pre_feedforward_layernorm", "ffn_norm"),
    }

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        raise ModelError("no GGUF files of VaultGemma are known")


def read_folder(config: JsonFile, tensor_names: Set[str], model_type: str) -> DecoderConfig:
    """The common part of the configurations of Gemma 2 and 3; raises ModelError."""
    usual = folder_config.read_decoder(config, tensor_names, model_type, is_tied=True, hidden_act="gelu_pytorch_tanh")
    if config.text("hidden_activation") not in (None, "gelu_pytorch_tanh"):
        raise config.error("hidden_activation", 'of this architecture it must be "gelu_pytorch_tanh"')
    if config.flag("use_bidirectional_attention"):
        raise config.error("use_bidirectional_attention", "attention to what comes later is not served")
    return of_gemma(usual, config.required_positive_number("query_pre_attn_scalar"))


def of_gemma(usual: DecoderConfig, query_scalar: float) -> DecoderConfig:
    """Adds the constants of both architectures; the scores are divided by the scalar's square root."""
    return dataclasses.replace(
        usual,
        activation=Activation.GELU_TANH,
        embedding_scale=usual.hidden_size**0.5,
        attention_scale=float(np.float32(query_scalar**-0.5)),  # a GGUF file holds a float32
    )


def are_local(num_layers: int, period: int) -> list[bool]:
    """Which layers have a window where the last of every `period` has none."""
    return [(index + 1) % period != 0 for index in range(num_layers)]


def gguf_scalar(file: GGUFTensors, usual: DecoderConfig, num_layers_27b: int) -> float:
    """The scores are divided by its square root; raises ModelError."""
    scale = file.fields.positive_number("attention.scale")
    if scale is not None:
        return scale**-2
    scalar = usual.hidden_size // usual.num_heads if usual.num_layers == num_layers_27b else usual.head_dim
    if scalar == 0:
        raise ModelError(f"{usual.num_heads} heads cannot share {usual.hidden_size} features")
    return scalar
