"""The MPT architecture (MosaicML, "Introducing MPT-7B", 2023)."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.backends.base.operands import Activation, NormKind
from engine.models.architectures.gpt.joined_qkv import JoinedQkvDecoder
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.alibi import MOST_BIAS, with_alibi
from engine.models.parts.decoder import Names
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary import NO_ROTARY
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.tensors import Transform, rows

_NAMES = {
    "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {"max_seq_len": 2048}  # where config.json says nothing; source: transformers' MptConfig
_FOLDER_NAMES = {
    "model.embed_tokens.": "transformer.wte.", "model.layers.": "transformer.blocks.",
    "model.norm_f.": "transformer.norm_f.",
}  # fmt: skip
_NO_OTHERS = "attention of this kind is not served"


@dataclass(frozen=True)
class Mpt(JoinedQkvDecoder):
    """Scores that fall with distance, LayerNorms without biases, GELU without gates."""

    takes_adapters = False  # what they add to queries, keys and values would be clamped too
    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("norm_1", "attn_norm"),
        "mlp_norm": ("norm_2", "ffn_norm"),
    }
    output_norm_names: ClassVar[Names] = ("model.norm_f", "output_norm")
    attention_output_names: ClassVar[Names] = ("attn.out_proj", "attn_output")
    qkv_names: ClassVar[Names] = ("attn.Wqkv", "attn_qkv")
    up_names: ClassVar[Names] = ("ffn.up_proj", "ffn_up")
    down_names: ClassVar[Names] = ("ffn.down_proj", "ffn_down")
    folder_names: ClassVar[Mapping[str, str]] = _FOLDER_NAMES
    norm_kind = NormKind.LAYER

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        attention = config.table("attn_config") or config.with_values(dict.fromkeys(config.names))
        if attention.flag("alibi") is False:
            raise attention.error("alibi", "positions that are embedded are not served")
        for key in ("prefix_lm", "qk_ln", "qk_gn", "attn_uses_sequence_id"):
            if attention.flag(key):
                raise attention.error(key, _NO_OTHERS)
        if attention.text("attn_type") not in (None, "multihead_attention"):
            raise attention.error("attn_type", _NO_OTHERS)
        if folder_config.read_flag(config, "no_bias", True) is False:
            raise config.error("no_bias", "biases are not served")
        if config.value("logit_scale") is not None:
            raise config.error("logit_scale", "logits that are scaled are not served")
        hidden_size = config.required_integer("d_model", least=1)
        expansion = config.integer("expansion_ratio", least=1) or 4
        renamed = {name: config.value(old) for name, old in _NAMES.items()}
        usual = folder_config.read_decoder(
            config.with_values({**renamed, "intermediate_size": expansion * hidden_size}), tensor_names, "mpt",
            rotary=NO_ROTARY, is_tied=True, epsilon_key="layer_norm_epsilon", default_epsilon=1e-5,
        )  # fmt: skip
        scale = attention.positive_number("softmax_scale") or usual.attention_scale
        usual = dataclasses.replace(usual, attention_scale=scale)
        limit = attention.positive_number("clip_qkv") or 0.0
        return cls(_of_mpt(usual, limit, attention.positive_number("alibi_bias_max") or MOST_BIAS))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file, rotary=NO_ROTARY, epsilon_key="attention.layer_norm_epsilon")
        most_bias = gguf_config.read_multiplier(file, "attention.max_alibi_bias", 0.0)
        if not most_bias or "position_embd.weight" in file.names:
            raise file.fields.error("attention.max_alibi_bias", "positions that are embedded are not served")
        for ending in ("attn_q_norm.weight", "attn_qkv.bias", "ffn_up.bias"):
            if f"blk.0.{ending}" in file.names:
                raise file.fields.error("attention.max_alibi_bias", f"a model with {ending} is not served")
        return cls(_of_mpt(usual, gguf_config.read_multiplier(file, "attention.clamp_kqv", 0.0), most_bias))

    def qkv_transform(self, index: int) -> Transform:
        """A folder, too, has all queries, then all keys, then all values."""
        size = self.config.q_size
        return rows(index * size, (index + 1) * size, 3 * size)


def _of_mpt(usual: DecoderConfig, qkv_limit: float, most_bias: float) -> DecoderConfig:
    changed = dataclasses.replace(usual, activation=Activation.GELU_ERF, qkv_limit=qkv_limit)
    return with_alibi(changed, most_bias=most_bias)
