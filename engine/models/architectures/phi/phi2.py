"""The architecture of Phi-1, Phi-1.5 and Phi-2 (Li et al., "Textbooks Are All You Need II", 2023)."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.backends.base.operands import Activation, NormKind
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.plain_mlp import PlainMlpDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: transformers' PhiConfig.
_DEFAULTS: dict[str, Any] = {"partial_rotary_factor": 0.5}


@dataclass(frozen=True)
class Phi2(PlainMlpDecoder):
    """Blocks side by side behind one LayerNorm, biases everywhere, GELU without gates, a rotation of a part."""

    norms: ClassVar[Mapping[str, Names]] = {"attention_norm": ("input_layernorm", "attn_norm")}
    output_norm_names: ClassVar[Names] = ("model.final_layernorm", "output_norm")
    attention_output_names: ClassVar[Names] = ("self_attn.dense", "attn_output")
    up_names: ClassVar[Names] = ("mlp.fc1", "ffn_up")
    down_names: ClassVar[Names] = ("mlp.fc2", "ffn_down")
    norm_kind = NormKind.LAYER
    has_norm_bias = True
    has_output_bias = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.flag("qk_layernorm"):
            raise config.error("qk_layernorm", "norms of queries and keys are not served for this architecture")
        usual = folder_config.read_decoder(
            config.with_defaults(_DEFAULTS), tensor_names, "phi", rotates_a_part=True, hidden_act="gelu_new",
            epsilon_key="layer_norm_eps", default_epsilon=1e-5,
        )  # fmt: skip
        return cls(_with_biases(usual))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        epsilon_key = "attention.layer_norm_epsilon"
        return cls(_with_biases(gguf_config.read_decoder(file, rotates_a_part=True, epsilon_key=epsilon_key)))


def _with_biases(usual: DecoderConfig) -> DecoderConfig:
    return dataclasses.replace(
        usual, activation=Activation.GELU_TANH, has_qkv_bias=True, has_attention_output_bias=True, has_mlp_bias=True,
        is_parallel=True,
    )  # fmt: skip
