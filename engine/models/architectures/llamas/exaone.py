"""The EXAONE architecture (LG AI Research, "EXAONE 3.0", 2024), also of EXAONE 3.5 and EXAONE Deep."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.parts import folder_config
from engine.models.parts.decoder import Decoder
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf

_FIELDS = {
    "num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps", "activation_function": "hidden_act",
}  # fmt: skip
# In the names of a folder's tensors, what stands for the usual names; in this order.
_FOLDER_NAMES = {
    "model.embed_tokens.": "transformer.wte.", "model.norm.": "transformer.ln_f.", "model.layers.": "transformer.h.",
    ".self_attn.o_proj.": ".self_attn.out_proj.", ".self_attn.": ".attn.attention.", ".input_layernorm.": ".ln_1.",
    ".post_attention_layernorm.": ".ln_2.", ".mlp.gate_proj.": ".mlp.c_fc_0.", ".mlp.up_proj.": ".mlp.c_fc_1.",
    ".mlp.down_proj.": ".mlp.c_proj.",
}  # fmt: skip


@dataclass(frozen=True)
class Exaone(Decoder):
    """Llama's layers by other names."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        stated = {usual: config.value(own) for own, usual in _FIELDS.items() if config.value(own) is not None}
        config = config.with_values(stated)
        return cls(
            folder_config.read_decoder(config, tensor_names, "exaone", default_theta=500_000.0, default_epsilon=1e-5)
        )

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that folders have for them."""

        def renamed(name: str) -> str:
            for usual, own in _FOLDER_NAMES.items():
                name = name.replace(usual, own)
            return name

        return tuple(leaf.renamed("safetensors", renamed) for leaf in super().leaves())
