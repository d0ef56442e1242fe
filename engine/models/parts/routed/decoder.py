"""The family of mixtures with shared experts and first layers without experts, such as DeepSeek-V3."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine.models.parts.decoder import Names
from engine.models.parts.experts import ExpertsDecoder

_OF_LAYER = re.compile(r"model\.layers\.(\d+)\..*")


@dataclass(frozen=True)
class RoutedDecoder(ExpertsDecoder):
    """What every token goes through has the names of DeepSeek's code."""

    shared_names: ClassVar[Mapping[str, Names]] = {
        "gate": ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
        "up": ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
        "down": ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    }

    def leaves_out(self, tensor_name: str) -> bool:
        """Also the layers behind the last one, which predict several tokens at once."""
        layer = _OF_LAYER.fullmatch(tensor_name)
        is_behind = layer is not None and int(layer[1]) >= self.config.num_layers
        return is_behind or super().leaves_out(tensor_name)
