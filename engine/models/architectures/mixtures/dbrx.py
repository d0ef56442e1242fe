"""The DBRX architecture (Databricks, "Introducing DBRX", 2024)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from engine.backends.base.operands import NormKind
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names, joined
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.experts import ExpertsConfig, ExpertsDecoder, with_experts
from engine.models.parts.routed.joined_experts import ExpertParts, with_stored
from engine.models.parts.routing import Routing
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, Part, Stored, with_folder_prefixes
from engine.weights.tensors import Transposed

_NAMES = {
    "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
}  # fmt: skip
_FOLDER_NAMES = {
    "model.embed_tokens.": "transformer.wte.", "model.layers.": "transformer.blocks.", "model.norm_f.":
    "transformer.norm_f.",
}  # fmt: skip
_POWER = "moe_normalize_expert_weights"  # of the norm that shares are divided by
_EPSILON = 1e-5  # of all models; configurations do not state it
_EXPERTS = "model.layers.{layer}.ffn.experts.mlp."


@dataclass(frozen=True)
class Dbrx(ExpertsDecoder):
    """LayerNorms without biases, queries, keys and values that are clamped, and experts in every layer."""

    takes_adapters = False  # what they add to queries, keys and values would be clamped too
    norm_kind = NormKind.LAYER
    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("norm_attn_norm.norm_1", "attn_norm"),
        "mlp_norm": ("norm_attn_norm.norm_2", "attn_output_norm"),
    }
    output_norm_names: ClassVar[Names] = ("model.norm_f", "output_norm")
    attention_output_names: ClassVar[Names] = ("norm_attn_norm.attn.out_proj", "attn_output")
    router_names: ClassVar[Names] = ("ffn.router.layer", "ffn_gate_inp")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        attention, blocks = config.table("attn_config"), config.table("ffn_config")
        if attention is None:
            raise config.missing("attn_config")
        if blocks is None:
            raise config.missing("ffn_config")
        activation = blocks.table("ffn_act_fn")
        if activation is not None and activation.text("name") not in (None, "silu"):
            raise activation.error("name", 'of this architecture it must be "silu"')
        power = blocks.with_defaults({_POWER: 1.0}).positive_number(_POWER)
        if power not in (None, 1.0):
            raise blocks.error(_POWER, "it must be 1 or null")
        inner = blocks.required_integer("ffn_hidden_size", least=1)
        values = {name: config.value(old) for name, old in _NAMES.items()}
        values |= {
            "num_key_value_heads": attention.integer("kv_n_heads", least=1) or 1, "intermediate_size": inner,
            "rope_theta": attention.positive_number("rope_theta") or config.positive_number("rope_theta"),
        }  # fmt: skip
        usual = folder_config.read_decoder(config.with_values(values), tensor_names, "dbrx")
        routing = Routing(
            num_experts=blocks.required_integer("moe_num_experts", least=1),
            num_picked=blocks.required_integer("moe_top_k", least=1),
            normalises_shares=power is not None,
        )
        return cls(_of_dbrx(usual, routing, attention.positive_number("clip_qkv") or 0.0))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file, epsilon_key="attention.layer_norm_epsilon")
        routing = Routing(
            num_experts=file.fields.required_integer("expert_count", least=1),
            num_picked=file.fields.required_integer("expert_used_count", least=1),
            normalises_shares=True,
        )
        return cls(_of_dbrx(usual, routing, gguf_config.read_multiplier(file, "attention.clamp_kqv", 0.0)))

    def leaves(self) -> tuple[Leaf, ...]:
        return with_folder_prefixes(super().leaves(), _FOLDER_NAMES)

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        sizes = (self.config.q_size, self.config.kv_size, self.config.kv_size)
        return joined(sizes, inputs, ("norm_attn_norm.attn.Wqkv", "attn_qkv"))

    def expert_parts(self, hidden: int, inner: int) -> ExpertParts:
        """A folder has all experts in one matrix, that of downs turned."""
        shape = (inner, hidden)
        return with_stored(
            super().expert_parts(hidden, inner), "safetensors",
            (
                Stored(f"{_EXPERTS}w1", joined_shape=shape), Stored(f"{_EXPERTS}v1", joined_shape=shape),
                Stored(f"{_EXPERTS}w2", Transposed, joined_shape=shape),
            ),
        )  # fmt: skip


def _of_dbrx(usual: DecoderConfig, routing: Routing, qkv_limit: float) -> ExpertsConfig:
    return with_experts(replace(usual, rms_norm_eps=_EPSILON, qkv_limit=qkv_limit), routing)
