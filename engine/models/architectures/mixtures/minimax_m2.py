"""The architecture of MiniMax-M2 (MiniMax, 2025)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names, QueryKeyNorm
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class MiniMaxM2(RoutedDecoder):
    """Queries and keys normed over all heads, a rotation of a part of each head, experts in every layer."""

    query_key_norm = QueryKeyNorm.ALL
    router_names: ClassVar[Names] = ("block_sparse_moe.gate", "ffn_gate_inp")
    choice_bias_names: ClassVar[Names] = ("block_sparse_moe.e_score_correction_bias", "exp_probs_b")
    expert_names: ClassVar[Mapping[str, Names]] = {
        "gate": ("block_sparse_moe.experts.{expert}.w1", "ffn_gate_exps"),
        "up": ("block_sparse_moe.experts.{expert}.w3", "ffn_up_exps"),
        "down": ("block_sparse_moe.experts.{expert}.w2", "ffn_down_exps"),
    }

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.flag("use_qk_norm") is False:
            raise config.error("use_qk_norm", "queries and keys without norms are not served for this architecture")
        if config.text("scoring_func") not in (None, "sigmoid"):
            raise config.error("scoring_func", 'of this architecture it must be "sigmoid"')
        rotary_dim = config.integer("rotary_dim", least=2)
        if rotary_dim is not None:
            head_dim = folder_config.read_sizes(config)["head_dim"]
            config = config.with_values({"partial_rotary_factor": rotary_dim / head_dim})
        usual = folder_config.read_decoder(
            config, tensor_names, "minimax_m2", rotates_a_part=True, default_theta=5_000_000.0
        )
        config = config.with_values(
            {"moe_intermediate_size": config.value("intermediate_size"), "norm_topk_prob": True}
        )
        made = routed_config.read_folder(config, usual, experts_key="num_local_experts", dense_layers=())
        return cls(made)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file, rotates_a_part=True)
        return cls(routed_config.read_gguf(file, usual, normalises_shares=True))
