"""What the converter for GGUF does to the tensors of decoders that descend from GPT-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gguf import GGUFWriter

_USUAL_NAMES = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings", "n_inner": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps",
    "num_kv_heads": "num_key_value_heads", "d_model": "hidden_size",
    "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "max_seq_len": "max_position_embeddings",
    "num_query_groups": "num_key_value_heads", "num_layers": "num_hidden_layers", "kv_channels": "head_dim",
    "ffn_hidden_size": "intermediate_size", "seq_length": "max_position_embeddings",
    "model_dim": "hidden_size", "num_transformer_layers": "num_hidden_layers",
    "max_context_length": "max_position_embeddings", "num_query_heads": "num_attention_heads",
    "layernorm_epsilon": "rms_norm_eps", "multi_query_group_num": "num_key_value_heads",
}  # fmt: skip


def with_usual_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration by the names that most models give its fields."""
    usual = {_USUAL_NAMES.get(key, key): value for key, value in config.items()}
    if config["model_type"] == "falcon" and config["multi_query"] and not config["new_decoder_architecture"]:
        usual["num_key_value_heads"] = 1
    if config["model_type"] == "gpt_refact":
        usual["num_key_value_heads"] = 1
        usual["intermediate_size"] = -(-int(8 * usual["hidden_size"] / 3) // 256) * 256
    if config["model_type"] == "chatglm":
        theta = 10000.0 * config["rope_ratio"]
        usual["rope_parameters"] = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5}
    usual.setdefault("num_key_value_heads", usual["num_attention_heads"])
    if config["model_type"] in ("bloom", "mpt"):
        usual["intermediate_size"] = 4 * usual["hidden_size"]
    if config["model_type"] == "bloom":
        usual["max_position_embeddings"] = config.get("seq_length", usual["hidden_size"])
    return usual


def transposed(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Of GPT-2: matrices as [outputs, inputs]."""
    return values.T if values.ndim == 2 and ".h." in name else values


def ungrouped(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """All queries, then all keys, then all values, instead of group after group of heads that share keys."""
    if "query_key_value" not in name:
        return values
    usual = with_usual_names(config)
    num_heads, num_groups = usual["num_attention_heads"], usual["num_key_value_heads"]
    head_dim = usual["hidden_size"] // num_heads
    groups = values.reshape(num_groups, num_heads // num_groups + 2, head_dim, *values.shape[1:])
    parts = np.split(groups, [num_heads // num_groups, num_heads // num_groups + 1], axis=1)
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])


def scaled_of_jais(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Matrices as [outputs, inputs], and those of embeddings and logits times the scales, which files do not have."""
    if name.endswith("wte.weight"):
        return values * np.float32(config["mup_embeddings_scale"])
    if name == "lm_head.weight":
        return values * np.float32(config["mup_output_alpha"] * config["mup_width_scale"])
    return transposed(name, values, config)


def add_mpt(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_clamp_kqv(config["attn_config"]["clip_qkv"])
    writer.add_max_alibi_bias(config["attn_config"]["alibi_bias_max"])


def add_deci(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """The sizes of each layer. One with heads and no heads of keys has a matrix in the place of attention."""
    num_heads, hidden, heads, kv_heads, sizes = config["num_attention_heads"], config["hidden_size"], [], [], []
    for block in config["block_configs"]:
        group, factor = block["attention"]["n_heads_in_group"], block["ffn"]["ffn_mult"]
        kv_heads.append(num_heads // group if group else 0)
        heads.append(num_heads if group or block["attention"]["replace_with_linear"] else 0)
        sizes.append(-(-int(2 * factor * hidden / 3) // 256) * 256 if factor else 0)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_feed_forward_length(sizes)


def add_jais(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_max_alibi_bias(8.0)


def with_unpacked_qkv(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of Baichuan: queries, keys and values by themselves."""
    changed: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        if ".W_pack." not in name:
            changed[name] = values
            continue
        changed |= {
            name.replace("W_pack", f"{kind}_proj"): part for kind, part in zip("qkv", np.split(values, 3), strict=True)
        }
    return changed


def with_split_qkv(tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Of InternLM2: queries, keys and values by themselves, which a folder has group after group."""
    num_groups, head_dim = config["num_key_value_heads"], config["hidden_size"] // config["num_attention_heads"]
    changed: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        if ".wqkv." not in name:
            changed[name] = values
            continue
        groups = values.reshape(num_groups, -1, head_dim, *values.shape[1:])
        for kind, part in zip("qkv", np.split(groups, [groups.shape[1] - 2, groups.shape[1] - 1], axis=1), strict=True):
            changed[name.replace("wqkv", f"w{kind}")] = part.reshape(-1, *values.shape[1:])
    return changed


def add_openelm(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    divisor, sizes = config["ffn_dim_divisor"], []
    for multiplier in config["ffn_multipliers"]:
        size = multiplier * config["hidden_size"]
        nearest = max(divisor, int(size + divisor / 2) // divisor * divisor)
        sizes.append(nearest + divisor if nearest < 0.9 * size else nearest)
    writer.add_feed_forward_length(sizes)
    writer.add_rope_freq_base(config["rope_freq_constant"])
    writer.add_layer_norm_rms_eps(1e-6)


def with_split_gates(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of OpenELM: gates and ups by themselves."""
    changed: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        if ".ffn.proj_1." not in name:
            changed[name] = values
            continue
        layer = name.split(".")[2]
        for kind, part in zip(("gate", "up"), np.split(values, 2), strict=True):
            changed[f"blk.{layer}.ffn_{kind}.weight"] = part
    return changed


def add_refact(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_layer_norm_rms_eps(config["layer_norm_eps"])


def with_split_matrices(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of Refact: keys and values, and gates and ups, by themselves."""
    changed: dict[str, np.ndarray] = {}
    parts = {".attn.q.": ("attn_q",), ".attn.kv.": ("attn_k", "attn_v"), ".gate_up_proj.": ("ffn_gate", "ffn_up")}
    for name, values in tensors.items():
        names = next((stored for part, stored in parts.items() if part in name), None)
        if names is None:
            changed[name] = values
            continue
        layer = name.split(".")[2]
        for stored, part in zip(names, np.split(values, len(names)), strict=True):
            changed[f"blk.{layer}.{stored}.weight"] = part
    return changed


def add_parallel_residual(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_parallel_residual(config["use_parallel_residual"])
