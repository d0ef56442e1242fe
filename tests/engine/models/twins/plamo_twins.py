"""What the converter for GGUF does to the tensors of PLaMo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gguf import GGUFWriter, RopeScalingType

_OFFSETS = {"post_mixer_norm.weight": 1 / 5, "post_mlp_norm.weight": 1 / 5**1.5}
_RENAMED = {
    ".dt_bias": ".dt_proj.bias", ".dt_norm_weight": ".dt_norm.weight", ".B_norm_weight": ".B_norm.weight",
    ".C_norm_weight": ".C_norm.weight", ".k_weight": ".k.weight", ".q_weight": ".q.weight",
}  # fmt: skip


def with_usual_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration by the names that most models give its fields."""
    if "mamba_step" not in config:
        return dict(config)
    return {**config, "head_dim": config["hidden_size_per_head"]}


def converted(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    changed: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        for end, renamed in _RENAMED.items():
            name = f"{name.removesuffix(end)}{renamed}" if name.endswith(end) else name
        if name.endswith(".A_log"):
            values = -np.exp(values)
        if name.endswith(".conv1d.weight"):
            values = values[:, 0]
        is_of_part = name.endswith(("dt_norm.weight", "B_norm.weight", "C_norm.weight"))
        if name.endswith("norm.weight") and not is_of_part:
            values = values + np.float32(_OFFSETS.get(name.rpartition("layers.")[2].partition(".")[2], 1.0))
        changed[name] = values
    return changed


def kv_heads(config: Mapping[str, Any], size: int) -> list[int]:
    """0 for layers of state spaces."""
    step = config["mamba_step"]
    return [size if layer % step == step // 2 else 0 for layer in range(config["num_hidden_layers"])]


def add_plamo2(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(0)
    writer.add_ssm_time_step_rank(config["mamba_num_heads"])
    writer.add_ssm_inner_size(config["mamba_num_heads"] * config["hidden_size_per_head"])


def add_plamo3(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_freq_base_swa(config["rope_local_theta"])
    writer.add_sliding_window(config["window_size"])
    writer.add_sliding_window_pattern(config["sliding_window_pattern"])
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(config["rope_scaling_factor"])
    writer.add_rope_scaling_orig_ctx_len(config["initial_context_length"])
