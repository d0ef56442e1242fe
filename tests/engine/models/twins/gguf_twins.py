"""Folders' tensors written as GGUF files, as the converter of the ggml project writes them.

Names of tensors and keys come from the gguf package, so that what an architecture declares is checked by a source of
its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGUFWriter, RopeScalingType

from tests.engine.models.twins import gemma_twins, gpt_twins, mixture_twins, plamo_twins
from tests.engine.models.twins.mixture_twins import num_experts

# What a transform takes and gives: the name in the folder, the values, and config.json.
Transform = Callable[[str, np.ndarray, Mapping[str, Any]], np.ndarray]
Extra = Callable[[GGUFWriter, Mapping[str, Any]], None]


def as_stored(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    return values


def adjacent_pairs(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Of queries and keys, the rows of each head: feature i beside feature i + head_dim / 2."""
    if not any(kind in name for kind in (".q_proj.", ".k_proj.", ".wq.", ".wk.")):
        return values
    halves = values.reshape(-1, 2, head_dim(config) // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def norms_with_one(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Norms as the factors that they are, not as the differences from 1."""
    return values + np.float32(1) if name.endswith("norm.weight") else values


def add_gemma2(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_sliding_window(config["sliding_window"])
    writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
    writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def add_gemma3(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(1 + config["layer_types"].index("full_attention"))
    writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])


def add_experts(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_expert_count(num_experts(config))
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def add_gpt_oss(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_window(writer, config)
    add_experts(writer, config)
    writer.add_expert_feed_forward_length(config["intermediate_size"])


def without_an_axis(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Convolutions as matrices."""
    return values[:, 0] if name.endswith("conv.conv.weight") else values


def add_short_convolutions(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_layer_norm_rms_eps(config["norm_eps"])
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    if "num_experts" in config:
        mixture_twins.add_routing(writer, config)


def add_mixtral(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_window(writer, config)
    add_experts(writer, config)


def with_joined_experts(tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """One tensor for all experts of a layer where a folder has one for each, by the names that converters give it."""
    joined = dict(tensors)
    if config["model_type"] == "llama4_text":
        return mixture_twins.with_turned_experts(tensors)
    if config["model_type"] == "gpt_oss":
        return dict(pair for name, values in tensors.items() for pair in of_gpt_oss(name, values))
    if config["model_type"] == "qwen3_vl_moe_text":
        for name in [name for name in tensors if ".experts." in name]:
            of_experts, before = joined.pop(name), name.rpartition(".")[0]
            kinds = ("down",) if name.endswith("down_proj") else ("gate", "up")
            for kind, values in zip(kinds, np.split(of_experts, len(kinds), axis=1), strict=True):
                joined[f"{before}.{kind}_proj.weight"] = values
    for name in [name for name in tensors if ".input_linear." in name]:  # of Granite
        gate_up = joined.pop(name)
        for kind, values in zip(("gate", "up"), np.split(gate_up, 2, axis=1), strict=True):
            joined[name.replace("block_sparse_moe.input_linear", f"mlp.experts.{kind}_proj")] = values
    for name in [name for name in tensors if ".experts.0." in name]:
        before, behind = name.split(".experts.0.")
        parts = [joined.pop(f"{before}.experts.{number}.{behind}") for number in range(num_experts(config))]
        if "block_sparse_moe" in before and config["model_type"] in ("mixtral", "phimoe"):
            before = before.removeprefix("model.").replace("block_sparse_moe", "feed_forward")
        if config["model_type"] == "lfm2_moe":
            before = before.removeprefix("model.")
        if config["model_type"] == "nemotron_h":
            before = before.replace("backbone.", "model.").replace(".mixer", ".mlp")
        joined[f"{before}.experts.{behind}"] = np.stack(parts)
    return joined


def of_gpt_oss(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """A tensor of gpt-oss by the names of other models: gates and ups apart, and matrices turned."""
    if name.endswith("sinks"):
        yield f"{name}.weight", values
        return
    if ".experts." not in name:
        yield name, values
        return
    suffix = "bias" if name.endswith("_bias") else "weight"
    values = values if suffix == "bias" else values.swapaxes(1, 2)
    name = name.removesuffix("_bias")
    if name.endswith("gate_up_proj"):
        for index, kind in enumerate(("gate_proj", "up_proj")):
            yield f"{name.replace('gate_up_proj', kind)}.{suffix}", values[:, index::2]
    else:
        yield f"{name}.{suffix}", values


def with_delta_nets(tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of gated delta-nets by the names, and in the order of heads, that converters give them.

    Qwen3-Next's products are taken apart. Qwen3.5's heads of values that share keys are put far apart.
    """
    if "linear_num_key_heads" not in config:
        return dict(tensors)
    num_key_heads, num_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_dim, value_dim, shared = (
        config["linear_key_head_dim"],
        config["linear_value_head_dim"],
        num_heads // num_key_heads,
    )
    key_size = 2 * num_key_heads * key_dim
    is_next = config["model_type"] == "qwen3_next"

    def tiled(values: np.ndarray, width: int) -> np.ndarray:
        if is_next:
            return values
        return values.reshape(num_key_heads, shared, width, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)

    changed: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        before, _, kind = name.partition("linear_attn.")
        match kind.removesuffix(".weight"):
            case "A_log":
                values = tiled(-np.exp(values), 1)
            case "dt_bias":
                name, values = f"{before}linear_attn.dt_proj.bias", tiled(values, 1)
            case "conv1d":
                values = values[:, 0]
                values = np.concatenate([values[:key_size], tiled(values[key_size:], value_dim)])
            case "in_proj_qkv":
                values = np.concatenate([values[:key_size], tiled(values[key_size:], value_dim)])
            case "in_proj_z":
                values = tiled(values, value_dim)
            case "in_proj_a" | "in_proj_b":
                values = tiled(values, 1)
            case "out_proj":
                values = tiled(values.T, value_dim).T
            case "in_proj_qkvz" if not config.get("is_early"):  # a key of ours: early converters left them joined
                groups = values.reshape(num_key_heads, -1, values.shape[1])
                cuts = np.cumsum([key_dim, key_dim, shared * value_dim])
                q, k, v, z = (part.reshape(-1, values.shape[1]) for part in np.split(groups, cuts, axis=1))
                changed[name.replace("qkvz", "z")] = z
                name, values = name.replace("qkvz", "qkv"), np.concatenate([q, k, v])
        changed[name] = values
    return changed


def with_state_spaces(tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of state spaces, and Granite's joined ones, by the names and shapes that converters give them."""
    changed: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        before, _, kind = name.rpartition(".mixer." if ".mixer." in name else ".mamba.")
        match kind.removesuffix(".weight"):
            case "A_log":
                values = -np.exp(values)
                values = values[:, None] if values.ndim == 1 else values
            case "D" if ".mixer." in name or "mamba_n_heads" in config:
                values = values[:, None]
            case "dt_bias":
                name = name.replace("dt_bias", "dt_proj.bias")
            case "conv1d":
                values = values[:, 0]
            case "norm" if "mamba" in name or ".mixer." in name:
                values = values.reshape(config.get("mamba_n_groups") or config["n_groups"], -1)
        if config["model_type"] == "nemotron_h":
            name = name.replace("model.", "backbone.")
        if ".shared_mlp." in name:
            before, _ = name.split(".shared_mlp.")
            shared = "shared_expert." if config["num_local_experts"] else ""
            if ".input_linear." in name:
                for part, half in zip(("gate", "up"), np.split(values, 2), strict=True):
                    changed[f"{before}.mlp.{shared}{part}_proj.weight"] = half
                continue
            name = f"{before}.mlp.{shared}down_proj.weight"
        changed[name] = values
    return changed


def with_multipliers_of_falcon(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """The weights times the multipliers, which files do not have."""
    inputs = config["attention_in_multiplier"]
    factors = {
        "down_proj": config["mlp_multipliers"][1], "gate_proj": config["mlp_multipliers"][0],
        "k_proj": inputs * config["key_multiplier"], "q_proj": inputs, "v_proj": inputs,
        "o_proj": config["attention_out_multiplier"], "out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"], "embed_tokens": config["embedding_multiplier"],
    }  # fmt: skip
    kind = name.split(".")[-2]
    if kind == "in_proj":
        size, states = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        widths = (size, size, states, states, config["mamba_n_heads"])
        return (values.T * np.repeat(config["ssm_multipliers"], widths)).T.astype(np.float32) * np.float32(
            config["ssm_in_multiplier"]
        )
    return values * np.float32(factors.get(kind, 1.0))


def norms_of_hybrids_with_one(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """As `norms_with_one`, but for the norm in a delta-net."""
    return values if name.endswith("linear_attn.norm.weight") else norms_with_one(name, values, config)


def add_delta_nets(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    is_recurrent = [kind == "linear_attention" for kind in config["layer_types"]]
    interval = 1 + is_recurrent.index(False)
    if is_recurrent == [(layer + 1) % interval != 0 for layer in range(len(is_recurrent))]:
        writer.add_full_attention_interval(interval)
    else:
        writer.add_array(f"{writer.arch}.attention.recurrent_layers", is_recurrent)
    if "num_experts" in config:
        add_experts(writer, config)
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def add_state_spaces(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Of Granite and Falcon."""
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    writer.add_ssm_inner_size(config["mamba_n_heads"] * config["mamba_d_head"])


def add_granite_hybrid(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_multipliers(writer, config)
    add_state_spaces(writer, config)
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
    if config["num_local_experts"]:
        add_experts(writer, config)


def add_mamba2(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Also of Nemotron-H."""
    num_heads, head_dim = (
        (config["mamba_num_heads"], config["mamba_head_dim"])
        if "mamba_num_heads" in config
        else (config["num_heads"], config["head_dim"])
    )
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_state_size(config.get("state_size") or config["ssm_state_size"])
    writer.add_ssm_group_count(config["n_groups"])
    writer.add_ssm_time_step_rank(num_heads)
    writer.add_ssm_inner_size(num_heads * head_dim)
    if "moe" in config.get("layers_block_type", ()):
        mixture_twins.add_routing(writer, config)
        if config["moe_latent_size"]:
            writer.add_moe_latent_size(config["moe_latent_size"])


def add_jamba(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_time_step_rank(config["mamba_dt_rank"])
    writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
    add_experts(writer, config)


def of_attending_layers(config: Mapping[str, Any], size: int) -> int | list[int]:
    """A size, or where few layers attend, 0 for those that do not; of Gemma 4 the heads of keys."""
    if config["model_type"] == "gemma4_text":
        return gemma_twins.kv_heads(config)
    if config["model_type"] == "mimo_v2_flash":
        return mixture_twins.kv_heads_of_mimo2(config)
    if config["model_type"] == "plamo2":
        return plamo_twins.kv_heads(config, size)
    if config["model_type"] == "kimi_linear":
        return [size if kind == "full_attention" else 0 for kind in config["layer_types"]]
    if "attn_layer_period" in config:  # of Jamba
        period, offset = config["attn_layer_period"], config["attn_layer_offset"]
        return [size if layer % period == offset else 0 for layer in range(config["num_hidden_layers"])]
    if "mamba_n_heads" in config or "mamba_num_heads" in config or config["model_type"] in ("lfm2", "lfm2_moe"):
        kinds = config.get("layers_block_type") or config.get("layer_types")
        return size if kinds is None else [size if kind in ("full_attention", "hybrid") else 0 for kind in kinds]
    return size


def of_feeding_layers(config: Mapping[str, Any], size: int) -> int | list[int]:
    """A size, or of Nemotron-H, 0 for layers without a feed-forward block; of LFM2 as it is adjusted."""
    if config["model_type"] == "gemma4_text":
        return gemma_twins.inner_sizes(config)
    if config["model_type"] == "lfm2":
        multiple = config["block_multiple_of"]
        return -(-(2 * size // 3) // multiple) * multiple
    if config["model_type"] != "nemotron_h":
        return size
    if "moe" in config["layers_block_type"]:
        size = config["moe_intermediate_size"]
    return [size if kind in ("mlp", "moe") else 0 for kind in config["layers_block_type"]]


def nothing(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Adds no fields."""


def head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def add_window(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_sliding_window(config["sliding_window"])


def add_windows(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Windows of the layers that `layer_types` names."""
    if config["sliding_window"] is not None:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def add_logit_scale(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_logit_scale(config["logit_scale"])


def add_cohere2(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Which layers have the window is the same in all models."""
    add_logit_scale(writer, config)
    add_window(writer, config)


def add_parallel_residual(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_parallel_residual(config["use_parallel_residual"])


def add_growth(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_attn_temperature_scale(config["rope_parameters"]["llama_4_scaling_beta"])
    writer.add_rope_scaling_yarn_log_mul(config["rope_parameters"]["mscale_all_dim"])


def add_minicpm(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_embedding_scale(config["scale_emb"])
    writer.add_residual_scale(config["scale_depth"] / config["num_hidden_layers"] ** 0.5)
    writer.add_logit_scale(config["hidden_size"] / config["dim_model_base"])


def add_multipliers(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def add_granite_moe(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_multipliers(writer, config)
    add_experts(writer, config)


def add_qwen2_moe(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_experts(writer, config)
    writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def vectors_of_shares(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """The gates of shared experts as vectors."""
    return values[0] if name.endswith("shared_expert_gate.weight") else values


def add_phi3(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """A window of 0 where there is none, and tensors of factors."""
    writer.add_sliding_window(config.get("sliding_window") or 0)
    rotary = config["rope_parameters"]
    if rotary["rope_type"] != "longrope":
        return
    original = config["original_max_position_embeddings"]
    writer.add_rope_scaling_orig_ctx_len(original)
    factor = config["max_position_embeddings"] / original
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)))
    add_longrope_factors(writer, config)


def add_phimoe(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_longrope_factors(writer, config)
    writer.add_rope_scaling_orig_ctx_len(config["rope_parameters"]["original_max_position_embeddings"])
    add_experts(writer, config)


def add_longrope_factors(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    for kind in ("short", "long"):
        writer.add_tensor(
            f"rope_factors_{kind}.weight", np.array(config["rope_parameters"][f"{kind}_factor"], np.float32)
        )


def add_loops(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """How often the layers are gone through."""
    writer.add_uint32("nanbeige.num_loops", config["num_loops"])
    writer.add_bool("nanbeige.skip_loop_final_norm", config["skip_loop_final_norm"])


def add_minicpm3(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Neither multipliers nor the width of values."""
    add_longrope_factors(writer, config)
    writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_key_length(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])


def add_olmo(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_layer_norm_eps(1e-5)
    writer.add_clamp_kqv(config["clip_qkv"])


def add_orion(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_layer_norm_eps(config["rms_norm_eps"])


def add_mamba(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_state_size(config["state_size"])
    writer.add_ssm_time_step_rank(config["time_step_rank"])
    writer.add_ssm_inner_size(config["intermediate_size"])


def add_step35(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Factors of the rotation in layers that see all, with ones behind them; the last layer looks ahead."""
    mixture_twins.add_step35(writer, config)
    factors = llama3_factors({**config["stretching"], **config["rope_parameters"]}, config["head_dim"] // 2)
    writer.add_tensor("rope_freqs.weight", np.concatenate([factors, np.ones_like(factors)]))


def add_falcon_mamba(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_mamba(writer, config)
    writer.add_ssm_dt_b_c_rms(True)


def add_rotary(writer: GGUFWriter, rotary: Mapping[str, Any], rotary_dim: int) -> None:
    writer.add_rope_dimension_count(rotary_dim)
    writer.add_rope_freq_base(rotary["rope_theta"])
    match rotary["rope_type"]:
        case "linear":
            writer.add_rope_scaling_type(RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rotary["factor"])
        case "yarn":
            writer.add_rope_scaling_type(RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rotary["factor"])
            writer.add_rope_scaling_orig_ctx_len(rotary["original_max_position_embeddings"])
            writer.add_rope_scaling_yarn_beta_fast(rotary["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rotary["beta_slow"])
        case "llama3":
            writer.add_tensor("rope_freqs.weight", llama3_factors(rotary, rotary_dim))


def llama3_factors(rotary: Mapping[str, Any], rotary_dim: int) -> np.ndarray:
    """What each frequency is divided by, float32[rotary_dim / 2]."""
    factors = []
    for pair in range(rotary_dim // 2):
        wavelength = 2 * np.pi * rotary["rope_theta"] ** (2 * pair / rotary_dim)
        turns = rotary["original_max_position_embeddings"] / wavelength
        low, high, factor = rotary["low_freq_factor"], rotary["high_freq_factor"], rotary["factor"]
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(factor)
        else:
            smooth = (turns - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


OF_PICTURES = (
    "vision_tower.", "multi_modal_projector.", "visual.", "model.visual.", "model.vision_model.", "model.connector.",
    "model.vision_tower.", "model.multi_modal_projector.", "model.embed_vision.", "vision_model.",
)  # fmt: skip
WITHOUT_SUFFIX = (  # in folders, of weights
    ".experts.gate_up_proj", ".experts.down_proj", "layer_scalar", "_output_scale", "attention_sink_bias",
    ".experts.mlp.w1", ".experts.mlp.v1", ".experts.mlp.w2",
)  # fmt: skip
OUTPUT = {"lm_head.weight": "output.weight"}
LAYER_NORM_EPSILONS = ("layer_norm_eps", "norm_epsilon", "norm_eps")

# The names of architectures that the gguf package does not know yet, whose tensors have the names of another one's.
STATED = {
    "DeepseekV32ForCausalLM": "deepseek32",
    "MellumForCausalLM": "mellum",
    "HYV3ForCausalLM": "hy_v3",
    "Cohere2MoeForCausalLM": "cohere2moe",
    "NanbeigeForCausalLM": "nanbeige",
    "LagunaForCausalLM": "laguna",
}

# By transformers' class: the architecture, what is done to tensors, and the fields that others do not have.
TWINS: dict[str, tuple[MODEL_ARCH, Transform, Extra]] = {
    "LlamaForCausalLM": (MODEL_ARCH.LLAMA, adjacent_pairs, nothing),
    "Llama4ForCausalLM": (MODEL_ARCH.LLAMA4, as_stored, mixture_twins.add_llama4),
    "Llama4ForConditionalGeneration": (MODEL_ARCH.LLAMA4, as_stored, mixture_twins.add_llama4),
    "MistralForCausalLM": (MODEL_ARCH.LLAMA, adjacent_pairs, add_window),
    "Ministral3ForCausalLM": (MODEL_ARCH.MISTRAL3, adjacent_pairs, add_growth),
    "Qwen2ForCausalLM": (MODEL_ARCH.QWEN2, as_stored, nothing),
    "Qwen3ForCausalLM": (MODEL_ARCH.QWEN3, as_stored, nothing),
    "SmolLM3ForCausalLM": (MODEL_ARCH.SMOLLM3, adjacent_pairs, nothing),
    "GraniteForCausalLM": (MODEL_ARCH.GRANITE, adjacent_pairs, add_multipliers),
    "Olmo2ForCausalLM": (MODEL_ARCH.OLMO2, as_stored, nothing),
    "Olmo3ForCausalLM": (MODEL_ARCH.OLMO2, as_stored, add_windows),
    "ExaoneForCausalLM": (MODEL_ARCH.EXAONE, as_stored, nothing),
    "Exaone4ForCausalLM": (MODEL_ARCH.EXAONE4, as_stored, add_windows),
    "SeedOssForCausalLM": (MODEL_ARCH.SEED_OSS, as_stored, nothing),
    "Ernie4_5ForCausalLM": (MODEL_ARCH.ERNIE4_5, as_stored, nothing),
    "GlmForCausalLM": (MODEL_ARCH.CHATGLM, as_stored, nothing),
    "MiniCPMForCausalLM": (MODEL_ARCH.MINICPM, adjacent_pairs, add_minicpm),
    "Glm4ForCausalLM": (MODEL_ARCH.GLM4, as_stored, nothing),
    "ArceeForCausalLM": (MODEL_ARCH.ARCEE, adjacent_pairs, nothing),
    "CohereForCausalLM": (MODEL_ARCH.COMMAND_R, as_stored, add_logit_scale),
    "Cohere2ForCausalLM": (MODEL_ARCH.COHERE2, as_stored, add_cohere2),
    "Starcoder2ForCausalLM": (MODEL_ARCH.STARCODER2, as_stored, add_window),
    "NemotronForCausalLM": (MODEL_ARCH.NEMOTRON, norms_with_one, nothing),
    "StableLmForCausalLM": (MODEL_ARCH.STABLELM, as_stored, add_parallel_residual),
    "OlmoForCausalLM": (MODEL_ARCH.OLMO, adjacent_pairs, add_olmo),
    "OrionForCausalLM": (MODEL_ARCH.ORION, as_stored, add_orion),
    "XverseForCausalLM": (MODEL_ARCH.XVERSE, adjacent_pairs, nothing),
    "GPTBigCodeForCausalLM": (MODEL_ARCH.STARCODER, as_stored, nothing),
    "PhimoeForCausalLM": (MODEL_ARCH.PHIMOE, as_stored, add_phimoe),
    "BailingMoeForCausalLM": (MODEL_ARCH.BAILINGMOE, adjacent_pairs, mixture_twins.add_routing),
    "MambaForCausalLM": (MODEL_ARCH.MAMBA, as_stored, add_mamba),
    "FalconMambaForCausalLM": (MODEL_ARCH.MAMBA, as_stored, add_falcon_mamba),
    "CodeShellForCausalLM": (MODEL_ARCH.CODESHELL, as_stored, nothing),
    "GPTRefactForCausalLM": (MODEL_ARCH.REFACT, as_stored, gpt_twins.add_refact),
    "ChatGLMModel": (MODEL_ARCH.CHATGLM, as_stored, nothing),
    "PanguEmbeddedForCausalLM": (MODEL_ARCH.PANGU_EMBED, as_stored, nothing),
    "SolarOpenForCausalLM": (MODEL_ARCH.GLM4_MOE, as_stored, mixture_twins.add_routing),
    "YoutuForCausalLM": (MODEL_ARCH.DEEPSEEK2, as_stored, mixture_twins.add_latents),
    "PLMForCausalLM": (MODEL_ARCH.PLM, as_stored, mixture_twins.add_plm),
    "OpenELMForCausalLM": (MODEL_ARCH.OPENELM, as_stored, gpt_twins.add_openelm),
    "LagunaForCausalLM": (MODEL_ARCH.STEP35, as_stored, mixture_twins.add_laguna),
    "Step3p5ForCausalLM": (MODEL_ARCH.STEP35, norms_with_one, add_step35),
    "Plamo2ForCausalLM": (MODEL_ARCH.PLAMO2, as_stored, plamo_twins.add_plamo2),
    "Plamo3ForCausalLM": (MODEL_ARCH.PLAMO3, as_stored, plamo_twins.add_plamo3),
    "MiniCPM3ForCausalLM": (MODEL_ARCH.MINICPM3, as_stored, add_minicpm3),
    "DeepseekV32ForCausalLM": (MODEL_ARCH.DEEPSEEK2, as_stored, mixture_twins.add_indexed_latents),
    "GlmMoeDsaForCausalLM": (MODEL_ARCH.GLM_DSA, as_stored, mixture_twins.add_indexed_latents),
    "Jais2ForCausalLM": (MODEL_ARCH.JAIS2, as_stored, nothing),
    "MaincoderForCausalLM": (MODEL_ARCH.MAINCODER, as_stored, nothing),
    "QWenLMHeadModel": (MODEL_ARCH.QWEN, as_stored, nothing),
    "NanbeigeForCausalLM": (MODEL_ARCH.LLAMA, adjacent_pairs, add_loops),
    "DeepseekForCausalLM": (MODEL_ARCH.DEEPSEEK, adjacent_pairs, mixture_twins.add_routing),
    "MellumForCausalLM": (MODEL_ARCH.QWEN3MOE, as_stored, mixture_twins.add_mellum),
    "HYV3ForCausalLM": (MODEL_ARCH.DOTS1, as_stored, mixture_twins.add_hy_v3),
    "Cohere2MoeForCausalLM": (MODEL_ARCH.DOTS1, as_stored, mixture_twins.add_cohere2_moe),
    "DbrxForCausalLM": (MODEL_ARCH.DBRX, mixture_twins.experts_of_dbrx, mixture_twins.add_dbrx),
    "PhiForCausalLM": (MODEL_ARCH.PHI2, as_stored, nothing),
    "Phi3ForCausalLM": (MODEL_ARCH.PHI3, as_stored, add_phi3),
    "MixtralForCausalLM": (MODEL_ARCH.LLAMA, adjacent_pairs, add_mixtral),
    "GraniteMoeForCausalLM": (MODEL_ARCH.GRANITE_MOE, adjacent_pairs, add_granite_moe),
    "Lfm2ForCausalLM": (MODEL_ARCH.LFM2, without_an_axis, add_short_convolutions),
    "Lfm2MoeForCausalLM": (MODEL_ARCH.LFM2MOE, without_an_axis, add_short_convolutions),
    "GptOssForCausalLM": (MODEL_ARCH.GPT_OSS, as_stored, add_gpt_oss),
    "Qwen2MoeForCausalLM": (MODEL_ARCH.QWEN2MOE, vectors_of_shares, add_qwen2_moe),
    "Qwen3MoeForCausalLM": (MODEL_ARCH.QWEN3MOE, as_stored, add_experts),
    "OlmoeForCausalLM": (MODEL_ARCH.OLMOE, as_stored, add_experts),
    "GemmaForCausalLM": (MODEL_ARCH.GEMMA, norms_with_one, nothing),
    "AfmoeForCausalLM": (MODEL_ARCH.AFMOE, as_stored, mixture_twins.add_afmoe),
    "BailingMoeV2ForCausalLM": (MODEL_ARCH.BAILINGMOE2, as_stored, mixture_twins.add_routing),
    "SmallThinkerForCausalLM": (MODEL_ARCH.SMALLTHINKER, as_stored, mixture_twins.add_smallthinker),
    "InternLM2ForCausalLM": (MODEL_ARCH.INTERNLM2, adjacent_pairs, nothing),
    "Glm4MoeForCausalLM": (MODEL_ARCH.GLM4_MOE, as_stored, mixture_twins.add_glm4_moe),
    "Dots1ForCausalLM": (MODEL_ARCH.DOTS1, as_stored, mixture_twins.add_routing),
    "Ernie4_5_MoeForCausalLM": (MODEL_ARCH.ERNIE4_5_MOE, as_stored, mixture_twins.add_routing),
    "HunYuanDenseV1ForCausalLM": (MODEL_ARCH.HUNYUAN_DENSE, as_stored, nothing),
    "HunYuanMoEV1ForCausalLM": (MODEL_ARCH.HUNYUAN_MOE, as_stored, mixture_twins.add_routing),
    "MiniMaxM2ForCausalLM": (MODEL_ARCH.MINIMAXM2, as_stored, mixture_twins.add_routing),
    "MiMoV2FlashForCausalLM": (MODEL_ARCH.MIMO2, as_stored, mixture_twins.add_mimo2),
    "ExaoneMoeForCausalLM": (MODEL_ARCH.EXAONE_MOE, as_stored, mixture_twins.add_exaone_moe),
    "DeepseekV2ForCausalLM": (MODEL_ARCH.DEEPSEEK2, as_stored, mixture_twins.add_latents),
    "DeepseekV3ForCausalLM": (MODEL_ARCH.DEEPSEEK2, as_stored, mixture_twins.add_latents),
    "Glm4MoeLiteForCausalLM": (MODEL_ARCH.DEEPSEEK2, as_stored, mixture_twins.add_latents),
    "KimiLinearForCausalLM": (MODEL_ARCH.KIMI_LINEAR, as_stored, mixture_twins.add_kimi_linear),
    "Mistral4ForCausalLM": (MODEL_ARCH.MISTRAL4, as_stored, mixture_twins.add_latents),
    "GPT2LMHeadModel": (MODEL_ARCH.GPT2, gpt_twins.transposed, nothing),
    "GPTNeoXForCausalLM": (MODEL_ARCH.GPTNEOX, gpt_twins.ungrouped, gpt_twins.add_parallel_residual),
    "FalconForCausalLM": (MODEL_ARCH.FALCON, gpt_twins.ungrouped, nothing),
    "BloomForCausalLM": (MODEL_ARCH.BLOOM, gpt_twins.ungrouped, nothing),
    "MptForCausalLM": (MODEL_ARCH.MPT, as_stored, gpt_twins.add_mpt),
    "JAISLMHeadModel": (MODEL_ARCH.JAIS, gpt_twins.scaled_of_jais, gpt_twins.add_jais),
    "BaichuanForCausalLM": (MODEL_ARCH.BAICHUAN, adjacent_pairs, nothing),
    "DeciLMForCausalLM": (MODEL_ARCH.DECI, adjacent_pairs, gpt_twins.add_deci),
    "ApertusForCausalLM": (MODEL_ARCH.APERTUS, as_stored, nothing),
    "Qwen3NextForCausalLM": (MODEL_ARCH.QWEN3NEXT, norms_of_hybrids_with_one, add_delta_nets),
    "Qwen3_5ForCausalLM": (MODEL_ARCH.QWEN35, norms_of_hybrids_with_one, add_delta_nets),
    "Qwen3_5ForConditionalGeneration": (MODEL_ARCH.QWEN35, norms_of_hybrids_with_one, add_delta_nets),
    "Qwen3_5MoeForCausalLM": (MODEL_ARCH.QWEN35MOE, norms_of_hybrids_with_one, add_delta_nets),
    "Qwen3_5MoeForConditionalGeneration": (MODEL_ARCH.QWEN35MOE, norms_of_hybrids_with_one, add_delta_nets),
    "GraniteMoeHybridForCausalLM": (MODEL_ARCH.GRANITE_HYBRID, adjacent_pairs, add_granite_hybrid),
    "FalconH1ForCausalLM": (MODEL_ARCH.FALCON_H1, with_multipliers_of_falcon, add_state_spaces),
    "NemotronHForCausalLM": (MODEL_ARCH.NEMOTRON_H, as_stored, add_mamba2),
    "Mamba2ForCausalLM": (MODEL_ARCH.MAMBA2, as_stored, add_mamba2),
    "JambaForCausalLM": (MODEL_ARCH.JAMBA, as_stored, add_jamba),
    "Gemma2ForCausalLM": (MODEL_ARCH.GEMMA2, norms_with_one, add_gemma2),
    "Gemma3nForCausalLM": (MODEL_ARCH.GEMMA3N, as_stored, gemma_twins.add_gemma3n),
    "Gemma4ForCausalLM": (MODEL_ARCH.GEMMA4, as_stored, gemma_twins.add_gemma4),
    "Gemma4ForConditionalGeneration": (MODEL_ARCH.GEMMA4, as_stored, gemma_twins.add_gemma4),
    "Gemma3ForCausalLM": (MODEL_ARCH.GEMMA3, norms_with_one, add_gemma3),
    "Gemma3ForConditionalGeneration": (MODEL_ARCH.GEMMA3, norms_with_one, add_gemma3),
    "SmolVLMForConditionalGeneration": (MODEL_ARCH.LLAMA, adjacent_pairs, nothing),
    "InternVLForConditionalGeneration": (MODEL_ARCH.QWEN2, as_stored, nothing),
    "Lfm2VlForConditionalGeneration": (MODEL_ARCH.LFM2, without_an_axis, add_short_convolutions),
    "Mistral3ForConditionalGeneration": (MODEL_ARCH.MISTRAL3, adjacent_pairs, add_growth),
    "Qwen2_5_VLForConditionalGeneration": (MODEL_ARCH.QWEN2VL, as_stored, nothing),
    "Qwen3VLForConditionalGeneration": (MODEL_ARCH.QWEN3VL, as_stored, nothing),
    "Qwen3VLMoeForConditionalGeneration": (MODEL_ARCH.QWEN3VLMOE, as_stored, add_experts),
}


def add_xielu(writer: GGUFWriter, tensors: Mapping[str, np.ndarray], num_layers: int) -> None:
    """The constants of Apertus' activation, of all layers in a field."""

    def of_layers(name: str) -> list[float]:
        return [float(tensors[f"model.layers.{layer}.mlp.act_fn.{name}"].reshape(())) for layer in range(num_layers)]

    writer.add_xielu_alpha_p(of_layers("alpha_p"))
    writer.add_xielu_alpha_n(of_layers("alpha_n"))
    writer.add_xielu_beta(of_layers("beta"))
    writer.add_xielu_eps(of_layers("eps"))


def add_rotary_of(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    rotary = config.get("rope_parameters")
    if rotary is None:
        return
    if rotary.get("rope_type") == "dynamic":
        mixture_twins.without_scaling(writer, config)
        return
    rotary = rotary.get("full_attention", rotary)
    rotary_dim = config.get("qk_rope_head_dim") or int(head_dim(config) * rotary.get("partial_rotary_factor", 1.0))
    add_rotary(writer, rotary, rotary_dim)


def with_gguf_names(tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors as converters rename, join and cut them before the table of names."""
    if config["model_type"] == "gemma4_text":
        tensors = gemma_twins.with_scales(tensors)
    if config["model_type"] == "gemma3n_text":
        tensors = gemma_twins.with_joined_streams(tensors)
    if config["model_type"] == "internlm2":
        tensors = gpt_twins.with_split_qkv(tensors, config)
    if config["model_type"] == "stablelm":
        tensors = with_stacked_norms(tensors)
    if config["model_type"] == "hy_v3":
        tensors = mixture_twins.with_bare_names(tensors)
    if config["model_type"] in ("bloom", "chatglm"):
        tensors = {name.removeprefix("transformer."): values for name, values in tensors.items()}
    if config["model_type"] == "openelm":
        tensors = gpt_twins.with_split_gates(tensors)
    if config["model_type"] == "gpt_refact":
        tensors = gpt_twins.with_split_matrices(tensors)
    if config["model_type"] == "laguna":
        tensors = mixture_twins.with_usual_tensors_of_laguna(tensors)
    if config["model_type"] == "baichuan":
        tensors = gpt_twins.with_unpacked_qkv(tensors)
    if config.get("architectures") == ["BailingMoeForCausalLM"]:
        tensors = mixture_twins.with_split_qkv(tensors, config)
    if config["model_type"] in ("plamo2", "plamo3"):
        tensors = plamo_twins.converted(tensors)
    if config["model_type"] in STATE_SPACES:
        tensors = with_state_spaces(tensors, config)
    return with_delta_nets(with_joined_experts(tensors, config), config)


def with_stacked_norms(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The norms of heads of StableLM, those of a layer as one matrix."""
    made = {name: values for name, values in tensors.items() if ".norms." not in name}
    for whole in sorted({name.split(".norms.")[0] for name in tensors if ".norms." in name}):
        count = sum(name.startswith(f"{whole}.norms.") for name in tensors)
        made[f"{whole}.weight"] = np.stack([tensors[f"{whole}.norms.{head}.weight"] for head in range(count)])
    return made


GPT_TYPES = {  # model types
    "gpt2", "gpt_bigcode", "gpt_neox", "falcon", "bloom", "mpt", "jais", "codeshell", "gpt_refact", "chatglm",
    "openelm",
}  # fmt: skip
STATE_SPACES = {  # likewise
    "granitemoehybrid", "falcon_h1", "nemotron_h", "mamba", "falcon_mamba", "mamba2", "jamba",
}  # fmt: skip


def write_gguf(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray],
    add_more: Callable[[GGUFWriter], None] = lambda writer: None,
) -> Path:  # fmt: skip
    """Writes the model of a folder's `config.json` and tensors; of a model with pictures, the text's.

    `add_more` writes further fields.
    """
    name = config["architectures"][0]
    architecture, transform, extra = TWINS[name]
    config = config.get("text_config", config)
    if name == "Step3p5ForCausalLM":
        config = mixture_twins.with_usual_names_of_step(config)
        tensors = {f"{name}.bias" if name.endswith("router_bias") else name: each for name, each in tensors.items()}
    config = plamo_twins.with_usual_names(gemma_twins.with_full_heads(mixture_twins.with_usual_names(config)))
    if "moe" in config.get("layers_block_type", ()):
        architecture = MODEL_ARCH.NEMOTRON_H_MOE
    if config["model_type"] in GPT_TYPES:
        config = gpt_twins.with_usual_names(config)
    if name == "KimiLinearForCausalLM":
        config = mixture_twins.with_usual_names_of_kimi(config)
        tensors = mixture_twins.with_delta_attention(tensors)
    if name in mixture_twins.LATENT:
        tensors = mixture_twins.with_latent_heads(tensors, config)
    num_ahead = name in ("Glm4MoeForCausalLM", "MiMoV2FlashForCausalLM", "Step3p5ForCausalLM")
    stated = STATED.get(name) or MODEL_ARCH_NAMES[architecture]
    writer = GGUFWriter(path, stated)
    if "layers_block_type" in config:
        config = {**config, "num_hidden_layers": len(config["layers_block_type"])}
    writer.add_block_count(config["num_hidden_layers"] + num_ahead)
    writer.add_context_length(config.get("max_position_embeddings", 1 << 20))
    writer.add_embedding_length(config["hidden_size"])
    if not config.get("num_local_experts") and "shared_intermediate_size" in config:  # of Granite without experts
        writer.add_feed_forward_length(config["shared_intermediate_size"])
    elif "intermediate_size" in config:
        writer.add_feed_forward_length(of_feeding_layers(config, config["intermediate_size"]))
    writer.add_head_count(config.get("num_attention_heads", 0))
    is_latent = name in mixture_twins.LATENT
    has_one_head = is_latent and not config.get("is_early")
    if "num_key_value_heads" in config:
        num_kv_heads = 1 if has_one_head else config["num_key_value_heads"]
        writer.add_head_count_kv(of_attending_layers(config, num_kv_heads))
    if config.get("rms_norm_eps") is not None:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    elif any(key in config for key in LAYER_NORM_EPSILONS):
        writer.add_layer_norm_eps(next(config[key] for key in LAYER_NORM_EPSILONS if key in config))
    if "head_dim" in config and "num_attention_heads" in config and not is_latent:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config.get("v_head_dim", config["head_dim"]))
    add_rotary_of(writer, config)
    extra(writer, config)
    add_more(writer)
    if architecture is MODEL_ARCH.APERTUS:
        add_xielu(writer, tensors, config["num_hidden_layers"])
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, values in with_gguf_names(tensors, config).items():
        if name.startswith(OF_PICTURES) or ".act_fn." in name:
            continue
        of_text = name.replace("language_model.", "").replace("text_model.", "")
        of_text = of_text.replace("e_score_correction_bias", "e_score_correction.bias")
        of_text = of_text.replace(".expert_bias", ".expert_bias.bias")
        of_text = f"{of_text}.weight" if of_text.endswith(WITHOUT_SUFFIX) else of_text
        # The table of names leaves out the output matrix of architectures that are published without one.
        stored = names.get_name(of_text, try_suffixes=(".weight", ".bias")) or OUTPUT.get(of_text)
        stored = name if name.startswith("blk.") else stored
        assert stored is not None, name
        writer.add_tensor(stored, np.ascontiguousarray(transform(name, values, config)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
