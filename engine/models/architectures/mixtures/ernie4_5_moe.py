"""The ERNIE 4.5 architecture (Baidu-ERNIE team, "ERNIE 4.5 Technical Report", 2025) of its mixtures of experts."""

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names
from engine.models.parts.model import Model
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.models.parts.routing import Scoring
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Part, Stored
from engine.weights.tensors import OnlyRow

# Where config.json says nothing; source: transformers' Ernie4_5_MoeConfig.
_DEFAULTS: dict[str, Any] = {
    "moe_num_experts": 64, "moe_k": 6, "moe_num_shared_experts": 2, "moe_intermediate_size": 1536,
    "moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Ernie45Moe(RoutedDecoder):
    """Adjacent features are rotated; a softmax scores the experts, with a bias of choice."""

    is_paired_in_folder = True
    is_paired_in_gguf = True
    choice_bias_names: ClassVar[Names] = ("mlp.moe_statics.e_score_correction_bias", "exp_probs_b")

    # What predicts several tokens at once is left where it is.
    derived_tensors: ClassVar[re.Pattern[str]] = re.compile(Model.derived_tensors.pattern + r"|model\.mtp_.*")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        usual = folder_config.read_decoder(
            config, tensor_names, "ernie4_5_moe", is_tied=True, default_theta=500_000.0, default_epsilon=1e-5
        )
        if folder_config.read_flag(config, "use_bias", False):
            raise config.error("use_bias", "biases are not served for this architecture")
        made = routed_config.read_folder(
            config, usual, scoring=Scoring.SOFTMAX, experts_key="moe_num_experts", picked_key="moe_k",
            shared_key="moe_num_shared_experts", dense_layers=_read_dense_layers(config, usual.num_layers),
        )  # fmt: skip
        least = config.positive_number("moe_norm_min")
        if least is not None and least > made.num_picked / made.num_experts:  # below, no sum of a softmax is as small
            raise config.error("moe_norm_min", "sums of shares that are made larger are not served")
        return cls(made)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file)
        return cls(routed_config.read_gguf(file, usual, scoring=Scoring.SOFTMAX, normalises_shares=True))

    def choice_bias_part(self) -> Part:
        """As `ExpertsDecoder.choice_bias_part`; in a folder it is a matrix of one row."""
        part = super().choice_bias_part()
        of_folder = Stored(part.stored["safetensors"].name, OnlyRow)
        return replace(part, stored={**part.stored, "safetensors": of_folder})


def _read_dense_layers(config: JsonFile, num_layers: int) -> Sequence[int]:
    """The layers before the first, behind the last and between those that have experts; raises ModelError."""
    start = config.required_integer("moe_layer_start_index", least=0)
    end = config.required_integer("moe_layer_end_index", least=-1)
    end = num_layers - 1 if end == -1 else end
    interval = config.required_integer("moe_layer_interval", least=1)
    dense = [layer for layer in range(num_layers) if not (start <= layer <= end and (layer + 1) % interval == 0)]
    if len(dense) == num_layers:
        raise config.error("moe_layer_start_index", f"none of the {num_layers} layers has experts")
    return dense
