"""ChatGLM2, ChatGLM3 and GLM-4 9B by the makers' own class (GLM team, "ChatGLM: A Family of Large Language Models")."""

import dataclasses
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.models.architectures.llamas.glm import Glm
from engine.models.parts import folder_config
from engine.models.parts.decoder import joined
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, Part, with_folder_names, with_folder_prefixes
from engine.weights.tensors import in_turn, paired_rows

_NAMES = {
    "num_hidden_layers": "num_layers", "vocab_size": "padded_vocab_size", "intermediate_size": "ffn_hidden_size",
    "head_dim": "kv_channels", "max_position_embeddings": "seq_length", "rms_norm_eps": "layernorm_epsilon",
}  # fmt: skip
# The only values that published models have, which are also those of the maker's class.
_USUAL: dict[str, Any] = {
    "add_bias_linear": False, "apply_residual_connection_post_layernorm": False, "post_layer_norm": True,
    "rmsnorm": True, "original_rope": True,
}  # fmt: skip
_FOLDER_NAMES = {
    "model.embed_tokens.": "transformer.embedding.word_embeddings.", "lm_head.": "transformer.output_layer.",
    "model.norm.": "transformer.encoder.final_layernorm.", "model.layers.": "transformer.encoder.layers.",
}  # fmt: skip
_IN_LAYERS = {".self_attn.o_proj.": ".self_attention.dense.", ".mlp.down_proj.": ".mlp.dense_4h_to_h."}
_THETA = 10_000.0


@dataclass(frozen=True)
class ChatGlm(Glm):
    """GLM-4's layers by other names, with joined queries, keys and values."""

    folder_names: ClassVar[Mapping[str, str]] = _FOLDER_NAMES
    model_type = "chatglm"
    derived_tensors = re.compile(r"transformer\.rotary_pos_emb\.inv_freq")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        for key, usual_value in _USUAL.items():
            if config.flag(key) not in (None, usual_value):
                raise config.error(key, f"of this architecture it must be {str(usual_value).lower()}")
        renamed = {name: config.value(old) for name, old in _NAMES.items()}
        if config.flag("multi_query_attention"):
            renamed["num_key_value_heads"] = config.required_integer("multi_query_group_num", least=1)
        usual = folder_config.read_decoder(
            config.with_values(
                {
                    **renamed, "rope_theta": _THETA * (config.positive_number("rope_ratio") or 1.0),
                    "partial_rotary_factor": 0.5, "tie_word_embeddings": False,
                }
            ),
            tensor_names, cls.model_type, rotates_a_part=True, default_epsilon=1e-5,
        )  # fmt: skip
        return cls(
            dataclasses.replace(
                usual, has_qkv_bias=folder_config.read_flag(config, "add_qkv_bias", False),
                has_attention_output_bias=False,
            )
        )  # fmt: skip

    def leaves(self) -> tuple[Leaf, ...]:
        return with_folder_prefixes(with_folder_names(super().leaves(), _IN_LAYERS), _FOLDER_NAMES)

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        config = self.config
        paired = paired_rows(config.head_dim, config.rotary[0].rotary_dim)
        folder = joined((config.q_size, config.kv_size, config.kv_size), inputs, ("self_attention.query_key_value", ""))
        made = []
        for part, in_folder, is_rotated in zip(super().qkv_parts(inputs), folder, (True, True, False), strict=True):
            stored = in_folder.stored["safetensors"]
            if is_rotated:
                assert stored.transform is not None
                stored = dataclasses.replace(stored, transform=in_turn(stored.transform, paired))
            made.append(dataclasses.replace(part, stored={**part.stored, "safetensors": stored}))
        return tuple(made)

    def gate_up_parts(self, inputs: int | None) -> tuple[Part, ...]:
        return joined((self.config.intermediate_size,) * 2, inputs, ("mlp.dense_h_to_4h", "ffn_up"))
