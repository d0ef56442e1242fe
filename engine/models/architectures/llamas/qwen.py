"""The first Qwen architecture (Bai et al., "Qwen Technical Report", 2023)."""

import re
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder, joined
from engine.models.parts.decoder_config import DecoderConfig
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, Part, with_folder_names

_FOLDER_NAMES = {
    "model.embed_tokens": "transformer.wte", "model.layers": "transformer.h", "model.norm": "transformer.ln_f",
    "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2", "self_attn.o_proj": "attn.c_proj",
    "mlp.gate_proj": "mlp.w2", "mlp.up_proj": "mlp.w1", "mlp.down_proj": "mlp.c_proj",
}  # fmt: skip
# Beyond so many tokens the maker's code scales queries and stretches the rotation, as the length of a text asks for.
_LENGTH = "seq_length"
_NO_BIAS = "no_bias"
# In GGUF files; later converters call the epsilon that of a LayerNorm.
_EPSILON, _LATE_EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


@dataclass(frozen=True)
class Qwen(Decoder):
    """Llama's layers with joined queries, keys and values, which have biases."""

    model_type: ClassVar[str] = "qwen"
    derived_tensors: ClassVar[re.Pattern[str]] = re.compile(r"transformer\.(h\.\d+\.attn\.)?rotary_emb\.inv_freq")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.flag(_NO_BIAS) is False:
            raise config.error(_NO_BIAS, "biases of all products are not served for this architecture")
        if config.positive_number("rotary_pct") not in (None, 1.0):
            raise config.error("rotary_pct", "a rotary embedding over a part of the head is not served")
        renamed: dict[str, Any] = {
            "head_dim": config.value("kv_channels"), "rope_theta": config.value("rotary_emb_base"),
            "max_position_embeddings": config.value(_LENGTH) or config.value("max_position_embeddings"),
        }  # fmt: skip
        usual = folder_config.read_decoder(
            config.with_values(renamed), tensor_names, cls.model_type, epsilon_key="layer_norm_epsilon"
        )
        if usual.intermediate_size % 2:
            raise config.error("intermediate_size", "it must be even: half of it are gates")
        return cls(_of_qwen(usual))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        is_usual = file.fields.value(_EPSILON) is not None
        usual = gguf_config.read_decoder(file, epsilon_key=_EPSILON if is_usual else _LATE_EPSILON)
        if usual.intermediate_size % 2:
            raise file.fields.error("feed_forward_length", "it must be even: half of it are gates")
        return cls(_of_qwen(usual))

    def leaves(self) -> tuple[Leaf, ...]:
        return with_folder_names(super().leaves(), _FOLDER_NAMES)

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        sizes = (self.config.q_size, self.config.kv_size, self.config.kv_size)
        return joined(sizes, inputs, ("attn.c_attn", "attn_qkv"))


def _of_qwen(usual: DecoderConfig) -> DecoderConfig:
    """Files count gates and ups together."""
    return replace(usual, has_qkv_bias=True, intermediate_size=usual.intermediate_size // 2)
