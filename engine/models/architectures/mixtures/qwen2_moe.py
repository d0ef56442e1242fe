"""The Qwen2 architecture of its mixture-of-experts models (Qwen team, "Qwen1.5-MoE", 2024)."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.parts import folder_config
from engine.models.parts.experts import ExpertsDecoder, read_folder, read_gguf, with_dense_layers
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_MAX_WINDOW_LAYERS = 28  # of transformers' class, where a configuration leaves it out


@dataclass(frozen=True)
class Qwen2Moe(ExpertsDecoder):
    """Qwen2's attention, experts in every layer or in some, and one that every token goes through there."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(config, tensor_names, "qwen2_moe")
        dense_size = usual.intermediate_size
        usual = dataclasses.replace(
            usual,
            intermediate_size=config.required_integer("moe_intermediate_size", least=1),
            has_qkv_bias=folder_config.read_flag(config, "qkv_bias", True),
            windows=_read_windows(config, usual.num_layers),
        )
        normalises = folder_config.read_flag(config, "norm_topk_prob", False)
        shared_size = config.required_integer("shared_expert_intermediate_size", least=1)
        experts = read_folder(config, usual, normalises_shares=normalises)
        made = with_dense_layers(config, experts, dense_size)
        return cls(dataclasses.replace(made, shared_size=shared_size))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        shared_size = file.fields.required_integer("expert_shared_feed_forward_length", least=1)
        return cls(dataclasses.replace(read_gguf(file, normalises_shares=False), shared_size=shared_size))


def _read_windows(config: JsonFile, num_layers: int) -> tuple[int, ...]:
    """Every second layer up to a limit has a window, where the model uses windows at all."""
    if not config.flag("use_sliding_window"):
        return (0,) * num_layers
    end = config.integer("max_window_layers", least=0)
    end = _MAX_WINDOW_LAYERS if end is None else end
    return folder_config.read_windows(config, [layer % 2 == 0 and layer < end for layer in range(num_layers)])
