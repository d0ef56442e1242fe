"""The Falcon architecture (Almazrouei et al., "The Falcon Series of Open Language Models", 2023)."""

import dataclasses
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.backends.base.operands import Activation, NormKind
from engine.models.architectures.gpt.joined_qkv import JoinedQkvDecoder
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.alibi import with_alibi
from engine.models.parts.decoder import Names
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary import NO_ROTARY
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: transformers' FalconConfig.
_DEFAULTS: dict[str, Any] = {"max_position_embeddings": 2048, "hidden_act": "gelu"}
_FOLDER_NAMES = {
    "model.embed_tokens.": "transformer.word_embeddings.", "model.layers.": "transformer.h.",
    "model.ln_f.": "transformer.ln_f.",
}  # fmt: skip
_OWN_MODEL_TYPES = ("RefinedWeb", "RefinedWebModel")

_ONE_NORM = {"attention_norm": ("input_layernorm", "attn_norm")}
_TWO_NORMS = {"attention_norm": ("ln_attn", "attn_norm_2"), "mlp_norm": ("ln_mlp", "attn_norm")}


@dataclass(frozen=True)
class FalconConfig(DecoderConfig):
    """A decoder's, and whether blocks that lie side by side have a norm each."""

    has_two_norms: bool = False


@dataclass(frozen=True)
class Falcon(JoinedQkvDecoder):
    """LayerNorms, blocks side by side in most models, GELU without gates; few heads of keys; ALiBi in some models."""

    config: FalconConfig

    output_norm_names: ClassVar[Names] = ("model.ln_f", "output_norm")
    attention_output_names: ClassVar[Names] = ("self_attention.dense", "attn_output")
    qkv_names: ClassVar[Names] = ("self_attention.query_key_value", "attn_qkv")
    up_names: ClassVar[Names] = ("mlp.dense_h_to_4h", "ffn_up")
    down_names: ClassVar[Names] = ("mlp.dense_4h_to_h", "ffn_down")
    folder_names: ClassVar[Mapping[str, str]] = _FOLDER_NAMES
    norm_kind = NormKind.LAYER
    has_norm_bias = True
    derived_tensors = re.compile(r"transformer\.h\.\d+\.self_attention\.(rotary_emb|maybe_rotary)\.inv_freq")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        has_alibi = folder_config.read_flag(config, "alibi", False)
        is_new = folder_config.read_flag(config, "new_decoder_architecture", False)
        is_parallel = is_new or folder_config.read_flag(config, "parallel_attn", True)
        num_norms = config.integer("num_ln_in_parallel_attn", least=1, most=2) or (2 if is_new else 1)
        num_heads = config.required_integer("num_attention_heads", least=1)
        num_kv_heads = config.integer("num_kv_heads", least=1) or num_heads
        if not is_new and folder_config.read_flag(config, "multi_query", True):
            num_kv_heads = 1
        inner = config.integer("ffn_hidden_size", least=1) or 4 * config.required_integer("hidden_size", least=1)
        config = config.with_values(
            {
                "num_key_value_heads": num_kv_heads, "intermediate_size": inner, "head_dim": None,
                "hidden_act": config.value("activation") or "gelu",
            }
        )  # fmt: skip
        usual = folder_config.read_decoder(
            config, tensor_names, "falcon", is_tied=True, hidden_act="gelu", epsilon_key="layer_norm_epsilon",
            default_epsilon=1e-5, rotary=NO_ROTARY if has_alibi else None,
        )  # fmt: skip
        if has_alibi:  # in bfloat16, as in the makers' code, whatever the type of the model
            usual = with_alibi(usual, rounds_biases=True)
        has_bias = folder_config.read_flag(config, "bias", False)
        usual = dataclasses.replace(
            usual, has_qkv_bias=has_bias, has_attention_output_bias=has_bias, has_mlp_bias=has_bias,
            is_parallel=is_parallel,
        )  # fmt: skip
        return cls(_of_falcon(usual, has_two_norms=is_new and num_norms == 2))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Files are of models whose blocks lie side by side."""
        usual = gguf_config.read_decoder(file, epsilon_key="attention.layer_norm_epsilon")
        has_bias = "blk.0.attn_qkv.bias" in file.names
        usual = dataclasses.replace(usual, has_qkv_bias=has_bias, is_parallel=True)
        return cls(_of_falcon(usual, has_two_norms="blk.0.attn_norm_2.weight" in file.names))

    def norm_names(self) -> Mapping[str, Names]:
        if self.config.has_two_norms:
            return _TWO_NORMS
        return _ONE_NORM if self.config.is_parallel else self.norms


@dataclass(frozen=True)
class RefinedWeb(Falcon):
    """Falcon by the makers' own class, whose configuration has other names."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.text("model_type") not in (None, *_OWN_MODEL_TYPES):
            raise config.error("model_type", f'of this architecture it must be "{_OWN_MODEL_TYPES[0]}"')
        renamed = {
            "num_hidden_layers": config.value("n_layer"), "num_attention_heads": config.value("n_head"),
            "num_kv_heads": config.value("n_head_kv"), "model_type": "falcon",
            "new_decoder_architecture": config.value("n_head_kv") is not None,
        }  # fmt: skip
        return super().from_folder(config.with_values(renamed), tensor_names)


def _of_falcon(usual: DecoderConfig, *, has_two_norms: bool) -> FalconConfig:
    values = {**vars(usual), "activation": Activation.GELU_ERF}
    return FalconConfig(**values, has_two_norms=has_two_norms)
