"""The architectures of Ling and Ring (Ling team, "Every FLOP Counts" and "Every Activation Boosted", 2025)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names, QueryKeyNorm, joined
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.models.parts.routing import Scoring
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, Part, with_folder_prefixes

# Where config.json says nothing; source: the maker's BailingMoeV2Config.
_DEFAULTS: dict[str, Any] = {
    "partial_rotary_factor": 0.5, "rope_theta": 600_000.0, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 1,
}  # fmt: skip


@dataclass(frozen=True)
class BailingMoe(RoutedDecoder):
    """The first version: routed and shared experts, whose shares are a softmax.

    A folder joins queries, keys and values; a GGUF file does not.
    """

    attention_output_names: ClassVar[Names] = ("attention.dense", "attn_output")
    is_paired_in_gguf = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        _refuse_biases(config)
        if config.flag("norm_head"):
            raise config.error("norm_head", "an output matrix that is normed is not served")
        usual = folder_config.read_decoder(config, tensor_names, "bailing_moe", default_epsilon=1e-6)
        made = routed_config.read_folder(
            config, usual, scoring=Scoring.SOFTMAX, has_choice_bias=False, experts_key="num_experts",
            shared_key="num_shared_experts",
        )  # fmt: skip
        return cls(made)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(routed_config.read_gguf(file, gguf_config.read_decoder(file), scoring=Scoring.SOFTMAX))

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the name that folders have for the embedding."""
        return with_folder_prefixes(super().leaves(), {"model.embed_tokens.": "model.word_embeddings."})

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        of_folder = self.joined_qkv_parts(inputs)
        return tuple(
            replace(part, stored={**part.stored, "safetensors": whole.stored["safetensors"]})
            for part, whole in zip(super().qkv_parts(inputs), of_folder, strict=True)
        )

    def joined_qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """Queries, keys and values as rows of one matrix."""
        config = self.config
        sizes = (config.q_size, config.kv_size, config.kv_size)
        return joined(sizes, inputs, ("attention.query_key_value", "attn_qkv"))


@dataclass(frozen=True)
class BailingMoe2(BailingMoe):
    """Norms of heads, of which a part is rotated; routed and shared experts behind the first layers."""

    is_paired_in_gguf = False
    query_key_norm = QueryKeyNorm.HEAD
    query_key_norm_names: ClassVar[Mapping[str, Names]] = {
        "q": ("attention.query_layernorm", "attn_q_norm"),
        "k": ("attention.key_layernorm", "attn_k_norm"),
    }
    choice_bias_names: ClassVar[Names] = ("mlp.gate.expert_bias", "exp_probs_b")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        _refuse_biases(config)
        if config.flag("use_qk_norm") is False:
            raise config.error("use_qk_norm", "queries and keys without norms are not served for this architecture")
        if config.text("score_function") not in (None, "sigmoid"):
            raise config.error("score_function", 'of this architecture it must be "sigmoid"')
        if config.text("model_type") == "bailing_moe_v2":  # files of the same class have either
            config = config.with_values({"model_type": "bailing_moe"})
        config = config.with_defaults(_DEFAULTS)
        usual = folder_config.read_decoder(config, tensor_names, "bailing_moe", rotates_a_part=True)
        made = routed_config.read_folder(
            config, usual, experts_key="num_experts", shared_key="num_shared_experts",
            has_choice_bias=folder_config.read_flag(config, "moe_router_enable_expert_bias", True),
        )  # fmt: skip
        return cls(made)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file, rotates_a_part=True)
        return cls(routed_config.read_gguf(file, usual, normalises_shares=True))

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        return self.joined_qkv_parts(inputs)


def _refuse_biases(config: JsonFile) -> None:
    """Raises ModelError if products have biases."""
    for key in ("use_bias", "use_qkv_bias"):
        if folder_config.read_flag(config, key, False):
            raise config.error(key, "biases are not served for this architecture")
