"""What the converter for GGUF writes of Gemma 3n and Gemma 4."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
from gguf import GGUFWriter

_NOT_ROTATED = 1e30  # what converters divide the frequencies of features by that are not rotated


def full_heads(config: Mapping[str, Any]) -> tuple[int, int]:
    """The features of a head, and the heads of keys, of layers that see all."""
    stated = config["per_layer_config"][str(config["layer_types"].index("full_attention"))]
    return stated["head_dim"], stated.get("num_key_value_heads", config["num_key_value_heads"])


def with_full_heads(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in which `head_dim` is that of layers that see all, as files have it."""
    if config["model_type"] != "gemma4_text":
        return dict(config)
    return {**config, "head_dim": full_heads(config)[0], "local_head_dim": config["head_dim"]}


def kv_heads(config: Mapping[str, Any]) -> list[int]:
    """Of each layer."""
    full = full_heads(config)[1]
    return [full if kind == "full_attention" else config["num_key_value_heads"] for kind in config["layer_types"]]


def inner_sizes(config: Mapping[str, Any]) -> int | list[int]:
    """Of each layer, or of all."""
    if not config["use_double_wide_mlp"]:
        return int(config["intermediate_size"])
    num_layers, size = config["num_hidden_layers"], config["intermediate_size"]
    first_shared = num_layers - config["num_kv_shared_layers"]
    return [size if layer < first_shared else 2 * size for layer in range(num_layers)]


def add_gemma4(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    rotaries, head_dim = config["rope_parameters"], config["head_dim"]
    num_rotated = int(rotaries["full_attention"]["partial_rotary_factor"] * head_dim // 2)
    factors = [1.0] * num_rotated + [_NOT_ROTATED] * (head_dim // 2 - num_rotated)
    writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    writer.add_rope_freq_base_swa(rotaries["sliding_attention"]["rope_theta"])
    writer.add_rope_dimension_count_swa(config["local_head_dim"])
    writer.add_key_length_swa(config["local_head_dim"])
    writer.add_value_length_swa(config["local_head_dim"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["enable_moe_block"]:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def add_gemma3n(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_altup_active_idx(config["altup_active_idx"])
    writer.add_altup_num_inputs(config["altup_num_inputs"])
    shares = config["activation_sparsity_pattern"]
    writer.add_activation_sparsity_scale([NormalDist().inv_cdf(share) if share else -math.inf for share in shares])


def with_joined_streams(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The matrices of Gemma 3n's residual streams, in one tensor for all of them."""
    joined = {name: values for name, values in tensors.items() if "_projections." not in name}
    for kind in ("altup", "altup_unembed"):
        before = f"model.{kind}_projections."
        count = sum(name.startswith(before) for name in tensors)
        joined[f"{before}weight"] = np.stack([tensors[f"{before}{index}.weight"] for index in range(count)])
    return joined


def with_scales(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The scales of routers and experts by the names that files have for them, whole."""
    names = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
    changed = {}
    for name, values in tensors.items():
        for folder, file in names.items():
            if name.endswith(folder):
                name = f"blk.{name.split('.')[-3]}.{file}"
        changed[name] = values
    return changed
