"""The InternLM2 architecture (Cai et al., "InternLM2 Technical Report", 2024)."""

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from engine.models.parts import folder_config
from engine.models.parts.decoder import Decoder, Names
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, Part, Stored, with_folder_names
from engine.weights.tensors import interleaved

# In the names of a folder's tensors, what stands for the usual names; in this order.
_FOLDER_NAMES = {
    "model.embed_tokens.": "model.tok_embeddings.", "lm_head.": "output.", ".mlp.": ".feed_forward.",
    "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2", ".input_layernorm.": ".attention_norm.",
    ".post_attention_layernorm.": ".ffn_norm.",
}  # fmt: skip


@dataclass(frozen=True)
class InternLM2(Decoder):
    """Llama's layers; a folder joins queries, keys and values, heads that share keys by heads that share keys."""

    is_paired_in_gguf = True
    attention_output_names: ClassVar[Names] = ("attention.wo", "attn_output")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        has_bias = folder_config.read_flag(config, "bias", True)
        config = config.with_values({"attention_bias": has_bias})
        return cls(folder_config.read_decoder(config, tensor_names, "internlm2", output="output.weight"))

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that folders have for them."""
        return with_folder_names(super().leaves(), _FOLDER_NAMES)

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        config, suffix = self.config, "bias" if inputs is None else "weight"
        shared = config.num_heads // config.num_kv_heads * config.head_dim
        widths, name = (shared, config.head_dim, config.head_dim), f"model.layers.{{layer}}.attention.wqkv.{suffix}"
        return tuple(
            replace(part, stored={**part.stored, "safetensors": Stored(name, take)})
            for part, take in zip(
                super().qkv_parts(inputs),
                (interleaved(config.num_kv_heads, widths, (index,)) for index in range(3)),
                strict=True,
            )
        )
