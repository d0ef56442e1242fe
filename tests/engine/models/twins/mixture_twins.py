"""What the converter for GGUF does to mixtures with shared experts, and to the tensors of latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gguf import ExpertGatingFuncType, GGUFWriter, RopeScalingType

# By transformers' class; the others leave it to the reader.
_GATING = {
    "Glm4MoeForCausalLM": ExpertGatingFuncType.SIGMOID,
    "SolarOpenForCausalLM": ExpertGatingFuncType.SIGMOID,
    "LagunaForCausalLM": ExpertGatingFuncType.SIGMOID,
    "MiniMaxM2ForCausalLM": ExpertGatingFuncType.SIGMOID,
    "Lfm2MoeForCausalLM": ExpertGatingFuncType.SIGMOID,
    "BailingMoeV2ForCausalLM": ExpertGatingFuncType.SIGMOID,
    "DeepseekV2ForCausalLM": ExpertGatingFuncType.SOFTMAX,
    "DeepseekV3ForCausalLM": ExpertGatingFuncType.SIGMOID,
    "DeepseekV32ForCausalLM": ExpertGatingFuncType.SIGMOID,
    "GlmMoeDsaForCausalLM": ExpertGatingFuncType.SIGMOID,
    "HYV3ForCausalLM": ExpertGatingFuncType.SIGMOID,
}
LATENT = (
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM", "Mistral4ForCausalLM",
    "KimiLinearForCausalLM", "DeepseekV32ForCausalLM", "MiniCPM3ForCausalLM", "GlmMoeDsaForCausalLM",
    "YoutuForCausalLM",
)  # fmt: skip


def num_experts(config: Mapping[str, Any]) -> int:
    keys = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return int(next((config[key] for key in keys if config.get(key)), 0))


def add_routing(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """How experts are routed, where a configuration says so."""
    writer.add_expert_count(num_experts(config))
    writer.add_expert_used_count(
        next(config[key] for key in ("num_experts_per_tok", "moe_k", "moe_topk") if key in config)
    )
    writer.add_expert_feed_forward_length(config.get("moe_intermediate_size") or config["intermediate_size"])
    architecture = config.get("architectures", [None])[0]  # the text of a model with pictures names none
    if architecture in _GATING:
        writer.add_expert_gating_func(_GATING[architecture])
    if architecture == "SmallThinkerForCausalLM":
        softmax = config["moe_primary_router_apply_softmax"]
        writer.add_expert_gating_func(ExpertGatingFuncType.SOFTMAX if softmax else ExpertGatingFuncType.SIGMOID)
    if config.get("n_group"):
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    if "norm_topk_prob" in config and architecture != "DeepseekV2ForCausalLM":
        writer.add_expert_weights_norm(config["norm_topk_prob"])
    if "routed_scaling_factor" in config:
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
    keys = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
    dense = next((config[key] for key in keys if key in config), None)
    if "mlp_layer_types" in config:
        dense = config["mlp_layer_types"].index("sparse")
    if dense is not None:
        writer.add_leading_dense_block_count(dense)


def add_glm4_moe(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Also a layer that predicts several tokens at once, of which one tensor is enough here."""
    add_routing(writer, config)
    writer.add_nextn_predict_layers(1)
    size = config["hidden_size"]
    writer.add_tensor(f"blk.{config['num_hidden_layers']}.nextn.eh_proj.weight", np.zeros((size, 2 * size), np.float32))


def add_mimo2(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Which layers have no experts is seen from the tensors. The last layer predicts several tokens at once."""
    add_routing(writer, {key: value for key, value in config.items() if key != "mlp_layer_types"})
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    writer.add_nextn_predict_layers(1)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([*(kind == "sliding_attention" for kind in config["layer_types"]), True])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_float32("mimo2.attention.value_scale", config["attention_value_scale"])
    size = config["hidden_size"]
    writer.add_tensor(f"blk.{config['num_hidden_layers']}.nextn.eh_proj.weight", np.zeros((size, 2 * size), np.float32))


def kv_heads_of_mimo2(config: Mapping[str, Any]) -> list[int]:
    """Of each layer, and of the one behind them: twice as many where there is a window."""
    size = config["num_key_value_heads"]
    return [*(2 * size if kind == "sliding_attention" else size for kind in config["layer_types"]), 2 * size]


def add_exaone_moe(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_routing(writer, config)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def add_afmoe(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_routing(writer, config)
    writer.add_expert_weights_scale(config["route_scale"])
    writer.add_sliding_window(config["sliding_window"])


def add_laguna(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """The first layer of four sees all, in all files that do not say; this one does, because its layers differ."""
    heads = config["num_attention_heads_per_layer"]
    add_routing(writer, {**config, "norm_topk_prob": True})
    writer.add_expert_weights_scale(config["moe_routed_scaling_factor"])
    writer.add_head_count(heads)
    local = config["rope_parameters"]["sliding_attention"]
    writer.add_rope_freq_base_swa(local["rope_theta"])
    local_dim = int(config["head_dim"] * local["partial_rotary_factor"])
    writer.add_uint32("laguna.rope.dimension_count_swa", local_dim)
    is_local = [kind == "sliding_attention" for kind in config["layer_types"]]
    if any(is_local):
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern(is_local)


def with_usual_names_of_step(config: Mapping[str, Any]) -> dict[str, Any]:
    base = {"rope_type": "default", "rope_theta": config["rope_theta"][0]}
    return {
        **{key: config[key] for key in config if key not in ("rope_theta", "rope_scaling")},
        "num_key_value_heads": config["num_attention_groups"], "num_experts": config["moe_num_experts"],
        "num_experts_per_tok": config["moe_top_k"], "rope_parameters": base, "stretching": config["rope_scaling"],
        "local_theta": config["rope_theta"][1],
    }  # fmt: skip


def add_step35(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_routing(writer, {**config, "norm_topk_prob": config["norm_expert_weight"]})
    writer.add_expert_weights_scale(config["moe_router_scaling_factor"])
    is_local = [kind == "sliding_attention" for kind in config["layer_types"]]
    own, others = config["num_attention_heads"], config["attention_other_setting"]["num_attention_heads"]
    writer.add_head_count([others if local else own for local in is_local])
    writer.add_head_count_kv([config["num_key_value_heads"]] * len(is_local))
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(is_local)
    writer.add_rope_freq_base_swa(config["local_theta"])
    writer.add_leading_dense_block_count(int(config["moe_layers_enum"][0]))
    writer.add_nextn_predict_layers(1)
    writer.add_array("step35.swiglu_clamp_exp", config["swiglu_limits"])
    writer.add_array("step35.swiglu_clamp_shexp", config["swiglu_limits_shared"])
    size = config["hidden_size"]
    writer.add_tensor(f"blk.{config['num_hidden_layers']}.nextn.eh_proj.weight", np.zeros((size, 2 * size), np.float32))


def with_usual_tensors_of_laguna(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name.replace("mlp.experts.e_score", "mlp.gate.e_score").replace("shared_expert.", "shared_experts."): values
        for name, values in tensors.items()
    }


def add_llama4(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
    writer.add_leading_dense_block_count(0)


def with_turned_experts(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gates, ups and downs of all experts, each in a tensor of its own, of Llama 4's two that are turned."""
    changed: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        if ".experts." not in name:
            changed[name] = values
            continue
        turned, kinds = values.swapaxes(1, 2), ("gate", "up") if "gate_up" in name else ("down",)
        for kind, part in zip(kinds, np.split(turned, len(kinds), axis=1), strict=True):
            changed[f"{name.rpartition('.')[0]}.{kind}_proj.weight"] = part
    return changed


def add_plm(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_key_length(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    writer.add_value_length(config["v_head_dim"])


def add_latents(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    if num_experts(config):
        add_routing(writer, config)
    kv_rank, rope_dim = config["kv_lora_rank"], config["qk_rope_head_dim"]
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(kv_rank)
    key_dim, value_dim = config["qk_nope_head_dim"] + rope_dim, config["v_head_dim"]
    if config.get("is_early"):  # a key of ours: early converters knew nothing of latents in the cache
        writer.add_key_length(key_dim)
        writer.add_value_length(value_dim)
    else:
        writer.add_key_length(kv_rank + rope_dim)
        writer.add_value_length(kv_rank)
        writer.add_key_length_mla(key_dim)
        writer.add_value_length_mla(value_dim)
    rotary = config["rope_parameters"]
    if rotary["rope_type"] == "yarn":
        writer.add_rope_scaling_yarn_log_mul(0.1 * rotary["mscale_all_dim"])
    if "llama_4_scaling_beta" in rotary:
        writer.add_attn_temperature_scale(rotary["llama_4_scaling_beta"])


def add_indexed_latents(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_latents(writer, config)
    key = f"{writer.arch}.attention.indexer"
    writer.add_uint32(f"{key}.head_count", config["index_n_heads"])
    writer.add_uint32(f"{key}.key_length", config["index_head_dim"])
    writer.add_uint32(f"{key}.top_k", config["index_topk"])
    kinds = config.get("indexer_types", ())
    if "shared" in kinds:  # as all files of GLM 5.2; those of GLM 5 leave it out
        writer.add_array(f"{key}.types", [kind == "full" for kind in kinds])


def with_split_qkv(tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Of the first Ling: queries, keys and values by themselves."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim, changed = config["hidden_size"] // heads, dict[str, np.ndarray]()
    for name, values in tensors.items():
        if "query_key_value" not in name:
            changed[name] = values
            continue
        parts = np.split(values, np.cumsum([heads, kv_heads]) * head_dim)
        for kind, part in zip("qkv", parts, strict=True):
            changed[name.replace("attention.query_key_value", f"self_attn.{kind}_proj")] = part
    return changed


def add_kimi_linear(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_latents(writer, config)
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_kda_head_dim(config["linear_head_dim"])


def with_usual_names_of_kimi(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **config, "n_group": config["num_expert_group"], "num_experts_per_tok": config["num_experts_per_token"],
        "max_position_embeddings": config["model_max_length"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    }  # fmt: skip


def with_delta_attention(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Decays as they are used, biases by another name, and convolutions with two axes of one."""
    changed: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        if name.endswith(".A_log"):
            values = -np.exp(values)
        if name.endswith(".dt_bias"):
            name = name.replace(".dt_bias", ".dt_proj.bias")
        for kind in ("gate", "up", "down"):  # of blocks without experts
            name = name.replace(f".block_sparse_moe.{kind}_proj.", f".mlp.{kind}_proj.")
        if "_conv1d." in name:
            values = values.reshape(1, len(values), 1, -1)
        changed[name] = values
    return changed


def with_latent_heads(tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The matrices of keys and values of each head by themselves, those of keys transposed."""
    changed: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        if ".indexer." in name:
            name = name.replace("model.layers.", "blk.").replace("self_attn.", "")
            for of_folder, of_gguf in {"wq_b": "attn_q_b", "wk": "attn_k", "weights_proj": "proj"}.items():
                name = name.replace(f".{of_folder}.", f".{of_gguf}.")
        if "kv_b_proj" not in name or config.get("is_early"):
            changed[name] = values
            continue
        by_head = values.reshape(config["num_attention_heads"], -1, values.shape[1])
        keys, of_values = np.split(by_head, [config["qk_nope_head_dim"]], axis=1)
        changed[name.replace("kv_b_proj", "k_b_proj")] = keys.swapaxes(1, 2)
        changed[name.replace("kv_b_proj", "v_b_proj")] = of_values
    return changed


def add_mellum(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_expert_count(num_experts(config))
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])


def add_cohere2_moe(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_exaone_moe(writer, config)
    writer.add_logit_scale(config["logit_scale"])


def add_hy_v3(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Which layers have no experts is seen from the tensors."""
    add_routing(writer, {key: value for key, value in config.items() if key != "mlp_layer_types"})
    writer.add_expert_weights_scale(config["router_scaling_factor"])


def with_bare_names(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of Hy3: the biases of choice by a name without an ending."""

    def renamed(name: str) -> str:
        layer = name.removeprefix("model.layers.").partition(".")[0]
        return f"blk.{layer}.exp_probs_b" if name.endswith(".expert_bias") else name

    return {renamed(name): values for name, values in tensors.items()}


def add_dbrx(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_clamp_kqv(config["attn_config"]["clip_qkv"])
    writer.add_expert_count(config["ffn_config"]["moe_num_experts"])
    writer.add_expert_used_count(config["ffn_config"]["moe_top_k"])


def experts_of_dbrx(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Matrices of experts by themselves, of all in one; downs are turned."""
    if ".ffn.experts.mlp." not in name:
        return values
    by_expert = values.reshape(config["ffn_config"]["moe_num_experts"], -1, values.shape[1])
    return by_expert.swapaxes(1, 2) if name.endswith("w2") else by_expert


def add_smallthinker(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    add_routing(writer, config)
    if any(config["sliding_window_layout"]):
        writer.add_sliding_window(config["sliding_window_size"])


def with_usual_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the names that transformers gives fields of its own classes."""
    made = dict(config)
    if "intermediate_size_mlp" in config and config["model_type"] != "maincoder":  # of Llama 4
        made |= {
            "intermediate_size": config["intermediate_size_mlp"],
            "moe_intermediate_size": config["intermediate_size"],
        }
    if config["model_type"] == "minicpm3":  # its converter is an early one
        made["is_early"] = True
    if config["model_type"] == "gpt_bigcode":
        made["n_inner"] = config["n_inner"] or 4 * config["n_embd"]
    if config["model_type"] == "cohere2_moe":
        inner = config["intermediate_size"]
        made |= {
            "intermediate_size": config["prefix_dense_intermediate_size"] or inner, "moe_intermediate_size": inner,
        }  # fmt: skip
    if config["model_type"] == "qwen":
        made |= {
            "head_dim": config["kv_channels"], "max_position_embeddings": config["seq_length"],
            "num_key_value_heads": config["num_attention_heads"],
            # A key of ours: later converters take another name.
            "layer_norm_eps" if config.get("is_late") else "rms_norm_eps": config["layer_norm_epsilon"],
            "rope_parameters": {"rope_type": "default", "rope_theta": config["rotary_emb_base"]},
        }  # fmt: skip
    if config["model_type"] == "maincoder":
        made["intermediate_size"] = config["intermediate_size_mlp"]
    if config["model_type"] == "dbrx":
        made |= {
            "hidden_size": config["d_model"], "num_hidden_layers": config["n_layers"], "layer_norm_eps": 1e-5,
            "num_attention_heads": config["n_heads"], "max_position_embeddings": config["max_seq_len"],
            "num_key_value_heads": config["attn_config"]["kv_n_heads"],
            "intermediate_size": config["ffn_config"]["ffn_hidden_size"],
        }  # fmt: skip
    if "num_layers" in config and "layer_norm_epsilon" in config:  # of EXAONE
        made |= {"num_hidden_layers": config["num_layers"], "rms_norm_eps": config["layer_norm_epsilon"]}
    if "rope_theta" in config and config.get("rope_scaling"):
        made["rope_parameters"] = {**config["rope_scaling"], "rope_theta": config["rope_theta"]}
    elif "rope_theta" in config:
        part = config.get("partial_rotary_factor", 1.0)
        made["rope_parameters"] = {
            "rope_type": "default", "rope_theta": config["rope_theta"], "partial_rotary_factor": part,
        }  # fmt: skip
    if "moe_ffn_hidden_size" in config:
        inner = config["moe_ffn_hidden_size"]
        made |= {
            "intermediate_size": inner, "moe_intermediate_size": inner,
            "num_experts": config["moe_num_primary_experts"],
            "num_experts_per_tok": config["moe_num_active_primary_experts"],
        }  # fmt: skip
    return made


def without_scaling(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Of Hunyuan's rotation: its base is written as it is used."""
    rotary, dim = config["rope_parameters"], config["head_dim"]
    writer.add_rope_dimension_count(dim)
    writer.add_rope_freq_base(rotary["rope_theta"] * rotary["alpha"] ** (dim / (dim - 2)))
    writer.add_rope_scaling_type(RopeScalingType.NONE)
    writer.add_rope_scaling_factor(1.0)
