"""Tiny models of every architecture, as keyword arguments of transformers' classes.

Their sizes are chosen so that a mistake shows: fewer heads of keys than of queries, heads that are not hidden_size
divided by the heads, windows shorter than the prompts, more layers than a pattern of layers is long.
"""

from __future__ import annotations

from typing import Any

VOCAB_SIZE = 256
PROMPT_LENGTHS = (1, 3, 100, 70)

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

_LLAMA: dict[str, Any] = {**_SIZES, "head_dim": 32}
_PLAIN = {"rope_type": "default", "rope_theta": 5000.0}

_LONGROPE: dict[str, Any] = {
    **_SIZES,
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.5], "long_factor": [1.0, 1.5, 2.0, 3.5, 5.0, 8.0],
    },
}  # fmt: skip
# An embedding that is scaled and makes the logits too would repeat the last token forever.
_GEMMA: dict[str, Any] = {**_SIZES, "tie_word_embeddings": False}

_GEMMA3: dict[str, Any] = {
    **_GEMMA,
    "head_dim": 32,
    "query_pre_attn_scalar": 24,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
    },
}

_GEMMA4: dict[str, Any] = {
    **_GEMMA, "head_dim": 32, "global_head_dim": 48, "sliding_window": 24, "final_logit_softcapping": 8.0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 5000.0},
    },
}  # fmt: skip
_HYBRID: dict[str, Any] = {
    **_LLAMA, "num_hidden_layers": 5,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "full_attention"] * 2 + ["linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
}  # fmt: skip
_HYBRID_EXPERTS: dict[str, Any] = {
    **_HYBRID, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}  # fmt: skip
# A first layer without experts, groups of experts, and shared ones.
_ROUTED: dict[str, Any] = {
    **_LLAMA, "num_hidden_layers": 4, "first_k_dense_replace": 1, "moe_intermediate_size": 32, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
    "n_shared_experts": 2, "rope_parameters": _PLAIN,
}  # fmt: skip
_HUNYUAN: dict[str, Any] = {
    **_LLAMA, "num_hidden_layers": 3,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "alpha": 20.0, "factor": 1.0},
}  # fmt: skip
_ALL_HEADS: dict[str, Any] = {key: value for key, value in _SIZES.items() if key != "num_key_value_heads"}
_GPT_NEOX: dict[str, Any] = {**_ALL_HEADS, "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5}}
_FALCON: dict[str, Any] = {
    **_ALL_HEADS, "rope_parameters": _PLAIN, "new_decoder_architecture": False, "ffn_hidden_size": 96,
    "tie_word_embeddings": False,
}  # fmt: skip
_LATENT: dict[str, Any] = {
    **{key: value for key, value in _ROUTED.items() if key != "head_dim"},
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
    "v_head_dim": 48,
}  # fmt: skip
_ROUTING = (
    "first_k_dense_replace", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "n_group",
    "topk_group", "norm_topk_prob", "routed_scaling_factor", "n_shared_experts",
)  # fmt: skip
_LATENT_YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 64,
    "beta_fast": 16.0, "beta_slow": 0.5, "mscale": 0.707, "mscale_all_dim": 0.707,
}  # fmt: skip
_TINY_VISION = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "patch_size": 8, "out_hidden_size": 64,
    "num_position_embeddings": 16,
}  # fmt: skip
_PICTURE_TOKENS = {
    "image_token_id": 250, "video_token_id": 251, "vision_start_token_id": 252, "vision_end_token_id": 253,
}  # fmt: skip

_MAMBA: dict[str, Any] = {
    "num_hidden_layers": 5, "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_head": 32,
}  # fmt: skip
_GRANITE_HYBRID: dict[str, Any] = {
    **_SIZES, **_MAMBA, "embedding_multiplier": 3.0, "attention_multiplier": 0.125, "residual_multiplier": 0.22,
    "logits_scaling": 0.5, "shared_intermediate_size": 64,
    "layer_types": ["linear_attention", "full_attention"] * 2 + ["linear_attention"],
}  # fmt: skip
_FALCON_H1: dict[str, Any] = {
    **_LLAMA, **_MAMBA, "mamba_d_ssm": 128, "num_hidden_layers": 3, "rope_parameters": _PLAIN,
    "embedding_multiplier": 3.0, "lm_head_multiplier": 0.75, "mlp_multipliers": [0.9, 0.6], "key_multiplier": 0.7,
    "attention_in_multiplier": 1.1, "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.6, "ssm_multipliers": [0.9, 1.1, 0.8, 1.3, 0.7],
}  # fmt: skip
_NEMOTRON_H: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "mamba_num_heads": 4,
    "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_NEMOTRON_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 64, "routed_scaling_factor": 2.5,
}  # fmt: skip
_SMALLTHINKER: dict[str, Any] = {
    **{key: value for key, value in _LLAMA.items() if key != "intermediate_size"}, "num_hidden_layers": 5,
    "moe_num_primary_experts": 6, "moe_num_active_primary_experts": 3, "moe_ffn_hidden_size": 32,
    "rope_theta": 5000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip
_GPT_OSS: dict[str, Any] = {  # prompts on both sides of the window
    **_LLAMA, "num_hidden_layers": 4, "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 30,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 64,
        "beta_fast": 16.0, "beta_slow": 0.5, "truncate": False,
    },
}  # fmt: skip

_LAGUNA: dict[str, Any] = {
    **_LLAMA, "num_hidden_layers": 5, "mlp_layer_types": ["dense"] + ["sparse"] * 4, "num_experts": 6,
    "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
    "moe_routed_scaling_factor": 1.5, "tie_word_embeddings": False,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 128,
            "beta_fast": 16.0, "beta_slow": 0.5, "partial_rotary_factor": 0.5,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
    },
}  # fmt: skip

_PLAMO2: dict[str, Any] = {
    **{key: value for key, value in _SIZES.items() if key != "head_dim"}, "num_hidden_layers": 6,
    "hidden_size_per_head": 32, "mamba_num_heads": 4, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_step": 3,
    "mamba_enabled": True, "attention_window_size": 30, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}  # fmt: skip

# By the name of the golden's file: transformers' class, and its configuration.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "LlamaForCausalLM",
        {**_LLAMA, "rope_parameters": _PLAIN},
    ),
    "llama_linear_biases_tied": (
        "LlamaForCausalLM",
        {
            **_LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.5},
        },
    ),
    "llama_three_one": (  # pairs of features below, within and above the ramp
        "LlamaForCausalLM",
        {
            **_LLAMA,
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            },
        },
    ),
    "llama_yarn": (
        "LlamaForCausalLM",
        {
            **_LLAMA,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                "beta_fast": 16.0, "beta_slow": 0.5,
            },
        },
    ),
    "mistral": ("MistralForCausalLM", {**_LLAMA, "sliding_window": 40, "rope_parameters": _PLAIN}),
    "ministral": (
        "MinistralForCausalLM",
        {
            **_LLAMA, "sliding_window": 30, "rope_parameters": _PLAIN,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "ministral3": (
        "Ministral3ForCausalLM",
        {
            **_LLAMA,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 5000.0, "factor": 16.0, "original_max_position_embeddings": 32,
                "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.5,
            },
        },
    ),
    "qwen2": ("Qwen2ForCausalLM", {**_SIZES, "tie_word_embeddings": True, "rope_parameters": _PLAIN}),
    "qwen2_windows": (
        "Qwen2ForCausalLM",
        {
            **_SIZES, "use_sliding_window": True, "sliding_window": 25, "max_window_layers": 1,
            "rope_parameters": _PLAIN,
        },
    ),
    "qwen3": (
        "Qwen3ForCausalLM",
        {**_SIZES, "head_dim": 32, "tie_word_embeddings": True, "rope_parameters": _PLAIN},
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        {**_SIZES, "num_hidden_layers": 4, "use_sliding_window": False, "rope_parameters": _PLAIN},
    ),
    "smollm3_windows": (
        "SmolLM3ForCausalLM",
        {
            **_SIZES, "no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 30,
            "attention_bias": True, "tie_word_embeddings": False, "rope_parameters": _PLAIN,
        },
    ),
    "granite": (
        "GraniteForCausalLM",
        {
            **_SIZES, "embedding_multiplier": 3.0, "attention_multiplier": 0.125, "residual_multiplier": 0.22,
            "logits_scaling": 0.5, "rope_parameters": _PLAIN,
        },
    ),
    "olmo2": ("Olmo2ForCausalLM", {**_SIZES, "rope_parameters": _PLAIN}),
    "phi3": ("Phi3ForCausalLM", {**_SIZES, "sliding_window": 45, "rope_parameters": _PLAIN}),
    "phi3_short": ("Phi3ForCausalLM", {**_LONGROPE, "original_max_position_embeddings": 128}),
    "phi3_long": ("Phi3ForCausalLM", {**_LONGROPE, "original_max_position_embeddings": 64}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {
            **_GEMMA,
            "head_dim": 32,
            "query_pre_attn_scalar": 24,
            "sliding_window": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 8.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        },
    ),
    "gemma3": ("Gemma3ForCausalLM", _GEMMA3),
    # With a part that reads pictures, which is left alone.
    "gemma3_pictures": (
        "Gemma3ForConditionalGeneration",
        {
            "text_config": _GEMMA3,
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 32,
                "patch_size": 8,
            },
            "tie_word_embeddings": False,
            "mm_tokens_per_image": 4,
            "boi_token_index": 250,
            "eoi_token_index": 251,
            "image_token_index": 252,
        },
    ),
    "smolvlm": (
        "SmolVLMForConditionalGeneration",
        {
            "text_config": {**_LLAMA, "model_type": "llama", "rope_parameters": _PLAIN},
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                "image_size": 32, "patch_size": 8,
            },
            "scale_factor": 2, "tie_word_embeddings": False, "image_token_id": 252,
        },
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLForConditionalGeneration",
        {
            "text_config": {
                **_SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [2, 3, 3]},
            },
            "vision_config": {
                "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4,
                "window_size": 16, "fullatt_block_indexes": [1], "out_hidden_size": 64,
            },
            "tie_word_embeddings": False, **_PICTURE_TOKENS,
        },
    ),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        {
            "text_config": {
                **_LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [8, 5, 3]},
            },
            "vision_config": {
                "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4,
                "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1], "out_hidden_size": 64,
            },
            "tie_word_embeddings": False, **_PICTURE_TOKENS,
        },
    ),
    "llava_next": (
        "LlavaNextForConditionalGeneration",
        {
            "text_config": {
                **_SIZES, "model_type": "granite", "embedding_multiplier": 3.0, "attention_multiplier": 0.125,
                "residual_multiplier": 0.22, "logits_scaling": 0.5, "rope_parameters": _PLAIN,
            },
            "vision_config": {
                "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
                "num_attention_heads": 2, "image_size": 12, "patch_size": 4,
            },
            "vision_feature_layer": [-4, -2], "vision_feature_select_strategy": "full", "tie_word_embeddings": False,
            "image_grid_pinpoints": [[12, 12], [12, 24], [24, 12], [24, 24], [12, 36]], "image_token_index": 252,
        },
    ),
    "mistral3": (
        "Mistral3ForConditionalGeneration",
        {
            "text_config": {
                **_LLAMA, "model_type": "ministral3",
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 5000.0, "factor": 16.0, "original_max_position_embeddings": 32,
                    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                    "llama_4_scaling_beta": 0.5,
                },
            },
            "vision_config": {
                "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 2, "head_dim": 16, "patch_size": 4, "image_size": 48, "rope_theta": 1000.0,
            },
            "spatial_merge_size": 2, "tie_word_embeddings": False, "image_token_index": 252,
        },
    ),
    "internvl": (
        "InternVLForConditionalGeneration",
        {
            "text_config": {**_SIZES, "model_type": "qwen2", "rope_parameters": _PLAIN},
            "vision_config": {
                "model_type": "internvl_vision", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 2, "attention_bias": True, "image_size": [16, 16], "patch_size": [4, 4],
            },
            "tie_word_embeddings": False, "image_token_id": 252, "image_seq_length": 4,
        },
    ),
    "llama4_pictures": (
        "Llama4ForConditionalGeneration",
        {
            "text_config": {
                **_LLAMA, "model_type": "llama4_text", "num_hidden_layers": 4, "intermediate_size": 32,
                "intermediate_size_mlp": 96, "num_local_experts": 4, "num_experts_per_tok": 1,
                "interleave_moe_layer_step": 2, "floor_scale": 32, "attn_scale": 0.5, "rope_parameters": _PLAIN,
                "tie_word_embeddings": False,
            },
            "vision_config": {
                "model_type": "llama4_vision_model", "hidden_size": 32, "intermediate_size": 128,
                "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 4,
                "projector_input_dim": 48, "projector_output_dim": 48, "vision_output_dim": 48,
            },
            "image_token_index": 252, "boi_token_index": 253, "eoi_token_index": 254,
        },
    ),
    "lfm2_vl": (
        "Lfm2VlForConditionalGeneration",
        {
            "text_config": {
                **_SIZES, "model_type": "lfm2", "block_multiple_of": 32, "conv_L_cache": 3,
                "layer_types": ["conv", "full_attention", "conv"], "rope_parameters": _PLAIN,
            },
            "vision_config": {
                "model_type": "siglip2_vision_model", "hidden_size": 32, "intermediate_size": 48,
                "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4, "num_patches": 36,
                "vision_use_head": False,
            },
            "projector_hidden_size": 48, "tie_word_embeddings": True, "image_token_id": 252,
        },
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoeForConditionalGeneration",
        {
            "text_config": {
                **_LLAMA, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 96,
                "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [8, 5, 3]},
            },
            "vision_config": {
                "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4,
                "num_position_embeddings": 36, "deepstack_visual_indexes": [0], "out_hidden_size": 64,
            },
            "tie_word_embeddings": False, **_PICTURE_TOKENS,
        },
    ),
    "gemma4": (  # layers that share keys and values, and are wider
        "Gemma4ForCausalLM",
        {
            **_GEMMA4, "num_hidden_layers": 6, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
            "layer_types": ["sliding_attention", "full_attention"] * 3, "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": VOCAB_SIZE,
        },
    ),
    "gemma4_pictures": (
        "Gemma4ForConditionalGeneration",
        {
            "text_config": {
                **_GEMMA4, "num_hidden_layers": 3, "hidden_size_per_layer_input": 32,
                "vocab_size_per_layer_input": VOCAB_SIZE,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            },
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                "num_key_value_heads": 2, "head_dim": 16, "patch_size": 8, "position_embedding_size": 16,
            },
            "audio_config": None, "tie_word_embeddings": False, "image_token_id": 250, "video_token_id": 251,
            "audio_token_id": 252, "boi_token_id": 253, "eoi_token_id": 254,
        },
    ),
    "gemma4_experts": (
        "Gemma4ForCausalLM",
        {
            **_GEMMA4, "num_hidden_layers": 3, "hidden_size_per_layer_input": 0, "enable_moe_block": True,
            "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 32,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gemma4_dense": (  # keys that are values, and fewer heads of them, in layers that see all
        "Gemma4ForCausalLM",
        {
            **_GEMMA4, "num_hidden_layers": 4, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
        },
    ),
    "gemma3n": (  # layers with few gates, layers that share keys and values, and tokens without embeddings by layer
        "Gemma3nForCausalLM",
        {
            **_GEMMA, "head_dim": 32, "sliding_window": 24, "final_logit_softcapping": 8.0, "num_hidden_layers": 4,
            "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2,
            "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": VOCAB_SIZE - 16, "laurel_rank": 32,
            "altup_num_inputs": 3, "altup_active_idx": 1, "activation_sparsity_pattern": [0.75] + [0.0] * 3,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
    ),
    "afmoe": (
        "AfmoeForCausalLM",
        {
            **_LLAMA, "num_hidden_layers": 4, "num_dense_layers": 1, "moe_intermediate_size": 32, "num_experts": 6,
            "num_experts_per_tok": 3, "num_shared_experts": 2, "route_scale": 1.5, "sliding_window": 24,
            "mup_enabled": True, "rope_parameters": _PLAIN,
        },
    ),
    "exaone": (
        "ExaoneForCausalLM",
        {
            **{key: value for key, value in _SIZES.items() if key != "num_hidden_layers"}, "num_layers": 3,
            "head_dim": 16, "layer_norm_epsilon": 1e-5, "activation_function": "silu", "rope_theta": 500.0,
            "tie_word_embeddings": False,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "glm": ("GlmForCausalLM", {**_LLAMA, "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5}}),
    "minicpm": (
        "MiniCPMForCausalLM",
        {
            **_SIZES, "rms_norm_eps": 1e-5, "scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 32,
            "rope_theta": 5000.0, "tie_word_embeddings": False,
        },
    ),
    "llama4": (  # layers with experts and without, and some that do not rotate
        "Llama4ForCausalLM",
        {
            **_LLAMA, "num_hidden_layers": 4, "intermediate_size": 32, "intermediate_size_mlp": 96,
            "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "floor_scale": 32,
            "attn_scale": 0.5, "rope_parameters": _PLAIN, "tie_word_embeddings": False,
        },
    ),
    "kimi_linear": (  # two layers in a row with delta attention, and a first one without experts
        "KimiLinearForCausalLM",
        {
            **{key: value for key, value in _LATENT.items() if key not in ("rope_parameters", "first_k_dense_replace")},
            "q_lora_rank": None, "kv_lora_rank": 64, "num_local_experts": 8, "linear_head_dim": 32,
            "linear_num_heads": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
    ),
    "mixtral": (
        "MixtralForCausalLM",
        {**_LLAMA, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 40, "rope_parameters": _PLAIN},
    ),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {
            **_LLAMA, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True,
            "rope_parameters": _PLAIN,
        },
    ),
    "olmoe": (
        "OlmoeForCausalLM",
        {**_SIZES, "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": False, "rope_parameters": _PLAIN},
    ),
    "gemma": ("GemmaForCausalLM", {**_GEMMA, "head_dim": 32, "rope_parameters": _PLAIN}),
    "seed_oss": (
        "SeedOssForCausalLM",
        {**_LLAMA, "attention_bias": True, "attention_out_bias": False, "mlp_bias": False, "rope_parameters": _PLAIN},
    ),
    "olmo3": (
        "Olmo3ForCausalLM",
        {
            **_SIZES, "sliding_window": 30,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": _PLAIN,
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0,
                    "original_max_position_embeddings": 128, "beta_fast": 16.0, "beta_slow": 0.5,
                },
            },
        },
    ),
    "exaone4": (  # no rotation in the layer without a window
        "Exaone4ForCausalLM",
        {
            **_LLAMA, "sliding_window": 30, "rope_parameters": _PLAIN,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "exaone4_all": (  # all layers rotate where none has a window
        "Exaone4ForCausalLM",
        {
            **_LLAMA, "sliding_window": None, "layer_types": ["full_attention"] * 3,
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            },
        },
    ),
    "glm4": (
        "Glm4ForCausalLM",
        {**_LLAMA, "attention_bias": True, "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5}},
    ),
    "ernie4_5": (
        "Ernie4_5ForCausalLM",
        {**_LLAMA, "use_bias": False, "tie_word_embeddings": True, "rope_parameters": _PLAIN},
    ),
    "arcee": ("ArceeForCausalLM", {**_LLAMA, "rope_parameters": _PLAIN}),
    "cohere": ("CohereForCausalLM", {**_SIZES, "logit_scale": 0.5, "rope_parameters": _PLAIN}),
    "cohere_norms": (  # of each head of queries and keys
        "CohereForCausalLM", {**_SIZES, "logit_scale": 0.5, "use_qk_norm": True, "rope_parameters": _PLAIN},
    ),
    "cohere2": (
        "Cohere2ForCausalLM",
        {
            **_SIZES, "logit_scale": 0.5, "sliding_window": 30, "rope_parameters": _PLAIN, "num_hidden_layers": 5,
        },
    ),
    "starcoder2": (
        "Starcoder2ForCausalLM",
        {**_SIZES, "sliding_window": 40, "use_bias": True, "rope_parameters": _PLAIN},
    ),
    "nemotron": (
        "NemotronForCausalLM",
        {**_LLAMA, "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5}},
    ),
    "stablelm": (
        "StableLmForCausalLM",
        {
            **_SIZES, "use_qkv_bias": True, "tie_word_embeddings": False,
            "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.25},
        },
    ),
    "stablelm_parallel": (  # with a norm of each head of queries and keys
        "StableLmForCausalLM",
        {
            **_SIZES, "use_parallel_residual": True, "qk_layernorm": True, "tie_word_embeddings": False,
            "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.25},
        },
    ),
    "phi2": ("PhiForCausalLM", {**_SIZES, "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5}}),
    "qwen3_next": ("Qwen3NextForCausalLM", _HYBRID_EXPERTS),
    "qwen3_next_uneven": (  # in no repeated pattern, more heads of keys and longer ones
        "Qwen3NextForCausalLM",
        {
            **_HYBRID_EXPERTS, "norm_topk_prob": False,
            "layer_types": ["linear_attention"] * 2 + ["full_attention"] * 2 + ["linear_attention"],
            "linear_num_key_heads": 4, "linear_key_head_dim": 48, "linear_value_head_dim": 16,
        },
    ),
    "qwen3_5": ("Qwen3_5ForCausalLM", _HYBRID),
    "qwen3_5_pictures": (
        "Qwen3_5ForConditionalGeneration",
        {
            "text_config": {**_HYBRID, "linear_num_value_heads": 6, "linear_conv_kernel_dim": 3},
            "vision_config": _TINY_VISION, "tie_word_embeddings": False, **_PICTURE_TOKENS,
        },
    ),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", _HYBRID_EXPERTS),
    "qwen3_5_moe_pictures": (
        "Qwen3_5MoeForConditionalGeneration",
        {
            "text_config": _HYBRID_EXPERTS, "vision_config": _TINY_VISION, "tie_word_embeddings": False,
            **_PICTURE_TOKENS,
        },
    ),
    "granite_moe": (
        "GraniteMoeForCausalLM",
        {
            **_SIZES, "num_local_experts": 6, "num_experts_per_tok": 3, "embedding_multiplier": 3.0,
            "attention_multiplier": 0.125, "residual_multiplier": 0.22, "logits_scaling": 0.5,
            "rope_parameters": _PLAIN,
        },
    ),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        {
            **_SIZES, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64, "norm_topk_prob": False, "rope_parameters": _PLAIN,
        },
    ),
    "glm4_moe": (
        "Glm4MoeForCausalLM",
        {
            **_ROUTED, "n_shared_experts": 1, "attention_bias": True, "use_qk_norm": True,
            "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5},
        },
    ),
    "glm4_moe_plain": (  # without norms of queries and keys, and all layers have experts
        "Glm4MoeForCausalLM",
        {
            **_ROUTED, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
            "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5},
        },
    ),
    "dots1": ("Dots1ForCausalLM", {**_ROUTED, "first_k_dense_replace": 2}),
    "ernie4_5_moe": (
        "Ernie4_5_MoeForCausalLM",
        {
            **_LLAMA, "moe_num_experts": 6, "moe_k": 3, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
            "moe_intermediate_size": 32, "tie_word_embeddings": True, "rope_parameters": _PLAIN,
        },
    ),
    "ernie4_5_moe_interval": (
        "Ernie4_5_MoeForCausalLM",
        {
            **_LLAMA, "num_hidden_layers": 6, "moe_num_experts": 6, "moe_k": 3, "moe_num_shared_experts": 0,
            "moe_layer_start_index": 1, "moe_layer_end_index": 4, "moe_layer_interval": 2,
            "moe_intermediate_size": 32, "tie_word_embeddings": False, "rope_parameters": _PLAIN,
        },
    ),
    "hunyuan_dense": ("HunYuanDenseV1ForCausalLM", {**_HUNYUAN, "tie_word_embeddings": True}),
    "jais2": ("Jais2ForCausalLM", {**_LLAMA, "rope_parameters": _PLAIN}),
    "maincoder": (
        "MaincoderForCausalLM",
        {
            **{key: value for key, value in _LLAMA.items() if key != "intermediate_size"}, "intermediate_size_mlp": 96,
            "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "use_qk_norm": True, "tie_word_embeddings": False,
        },
    ),
    "qwen": (
        "QWenLMHeadModel",
        {
            **{key: value for key, value in _SIZES.items() if key != "num_key_value_heads"}, "intermediate_size": 192,
            "kv_channels": 32, "seq_length": 512, "rotary_emb_base": 5000, "rotary_pct": 1.0, "use_dynamic_ntk": True,
            "use_logn_attn": True, "layer_norm_epsilon": 1e-6, "no_bias": True, "tie_word_embeddings": False,
        },
    ),
    "nanbeige": (
        "NanbeigeForCausalLM",
        {
            **_LLAMA, "num_loops": 2, "skip_loop_final_norm": False, "rms_norm_eps": 1e-5, "rope_theta": 5000.0,
            "tie_word_embeddings": False,
        },
    ),
    "deepseek": (
        "DeepseekForCausalLM",
        {
            **_SIZES, "num_key_value_heads": 4, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_routed_experts": 6,
            "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_intermediate_size": 32, "norm_topk_prob": False,
            "scoring_func": "softmax", "rms_norm_eps": 1e-6, "rope_theta": 5000.0, "tie_word_embeddings": False,
        },
    ),
    "mellum": (  # a rotation that is not stretched in layers with windows
        "MellumForCausalLM",
        {
            **_LLAMA, "num_hidden_layers": 5, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
            "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0,
                    "original_max_position_embeddings": 128, "beta_fast": 16.0, "beta_slow": 0.5,
                },
            },
        },
    ),
    "hy_v3": (
        "HYV3ForCausalLM",
        {
            **_LLAMA, "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 3, "num_shared_experts": 2,
            "moe_intermediate_size": 32, "router_scaling_factor": 1.5, "rope_parameters": _PLAIN,
        },
    ),
    "cohere2_moe": (  # a first layer that sees all and rotates
        "Cohere2MoeForCausalLM",
        {
            **_LLAMA, "num_hidden_layers": 6, "intermediate_size": 32, "prefix_dense_intermediate_size": 96,
            "num_experts": 8, "num_experts_per_tok": 3, "num_shared_experts": 2, "expert_selection_fn": "sigmoid",
            "first_k_dense_replace": 1, "sliding_window": 30, "logit_scale": 0.5, "rope_theta": 5000.0,
        },
    ),
    "cohere2_moe_rms": (  # RMS norms, a softmax, and sums of routed and shared experts
        "Cohere2MoeForCausalLM",
        {
            **_LLAMA, "intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3, "num_shared_experts": 1,
            "shared_expert_combination_strategy": "sum", "rms_norm_eps": 1e-6, "sliding_window": 30,
            "sliding_window_pattern": 2, "logit_scale": 0.5, "rope_theta": 5000.0, "tie_word_embeddings": False,
        },
    ),
    "dbrx": (
        "DbrxForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 512,
            "attn_config": {"clip_qkv": 0.75, "kv_n_heads": 2, "rope_theta": 5000.0}, "rope_parameters": _PLAIN,
            "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 32, "moe_num_experts": 6, "moe_top_k": 3},
            "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        },
    ),
    "glm_dsa": (  # an index that rotates adjacent features
        "GlmMoeDsaForCausalLM",
        {**_LATENT, "index_topk": 32, "index_head_dim": 32, "index_n_heads": 16, "n_group": 1, "topk_group": 1},
    ),
    "glm_dsa_shared": (  # layers that take what the index of a layer before picks
        "GlmMoeDsaForCausalLM",
        {
            **_LATENT, "index_topk": 32, "index_head_dim": 32, "index_n_heads": 16, "n_group": 1, "topk_group": 1,
            "num_hidden_layers": 6, "indexer_types": ["full", "full", "shared", "full", "shared", "shared"],
        },
    ),
    "hunyuan_moe": ("HunYuanMoEV1ForCausalLM", {**_HUNYUAN, "num_experts": 6, "moe_topk": 3}),
    "mimo2": (  # twice as many heads of keys in layers with windows, and values that are narrower
        "MiMoV2FlashForCausalLM",
        {
            **_ROUTED, "head_dim": 32, "v_head_dim": 16, "sliding_window": 24, "attention_value_scale": 0.707,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "num_key_value_heads": 1, "first_k_dense_replace": None, "n_shared_experts": None,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.334},
                "full_attention": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.334},
            },
        },
    ),
    "minimax_m2": (
        "MiniMaxM2ForCausalLM",
        {
            **_LLAMA, "num_local_experts": 8, "num_experts_per_tok": 3,
            "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5},
        },
    ),
    "exaone_moe": (
        "ExaoneMoeForCausalLM",
        {
            **{key: value for key, value in _ROUTED.items() if key not in ("n_routed_experts", "n_shared_experts")},
            "num_experts": 8, "num_shared_experts": 2, "sliding_window": 30,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", _GPT_NEOX),
    "gpt_neox_sequential": ("GPTNeoXForCausalLM", {**_GPT_NEOX, "use_parallel_residual": False}),
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCAB_SIZE, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "n_inner": 96,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        },
    ),
    "falcon": ("FalconForCausalLM", {**_FALCON, "multi_query": True, "parallel_attn": True, "bias": False}),
    "falcon_new": (
        "FalconForCausalLM", {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": False},
    ),
    "falcon_sequential": (
        "FalconForCausalLM",
        {**_FALCON, "multi_query": False, "parallel_attn": False, "bias": True, "tie_word_embeddings": True},
    ),
    "falcon_alibi": (  # slopes and positions that bfloat16 rounds
        "FalconForCausalLM",
        {
            **_FALCON, "hidden_size": 96, "num_attention_heads": 12, "multi_query": False, "parallel_attn": False,
            "bias": True, "alibi": True,
        },
    ),
    "bloom": (
        "BloomForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "hidden_size": 64, "n_layer": 3, "n_head": 4, "tie_word_embeddings": False,
            "seq_length": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        },
    ),
    "mpt": (  # heads of no power of two
        "MptForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "d_model": 96, "n_heads": 6, "n_layers": 3, "max_seq_len": 512,
            "attn_config": {"clip_qkv": 1.5, "alibi_bias_max": 8}, "tie_word_embeddings": False,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        },
    ),
    "jais": (
        "JAISLMHeadModel",
        {
            "vocab_size": VOCAB_SIZE, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "n_inner": 96,
            "activation_function": "swiglu", "position_embedding_type": "alibi", "layer_norm_epsilon": 1e-5,
            "mup_embeddings_scale": 3.5, "mup_output_alpha": 1.5, "mup_width_scale": 0.5,
            "mup_scale_qk_dot_by_d": True, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
        },
    ),
    "baichuan": (
        "BaichuanForCausalLM",
        {
            **{key: value for key, value in _SIZES.items() if key != "num_key_value_heads"}, "rms_norm_eps": 1e-6,
            "hidden_act": "silu", "tie_word_embeddings": False,
        },
    ),
    "deci": (
        "DeciLMForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            },
            "block_configs": [
                {
                    "attention": {"n_heads_in_group": group, "no_op": not group and not is_linear,
                                  "replace_with_linear": is_linear},
                    "ffn": {"ffn_mult": factor, "no_op": factor is None, "replace_with_linear": False},
                }
                for group, is_linear, factor in (
                    (2, False, 3.0), (4, False, 9.5), (None, False, 3.0), (None, True, 9.5), (2, False, None),
                    (None, False, None), (1, False, 3.0), (1, False, 3.0),
                )
            ],
        },
    ),
    "baichuan_alibi": (
        "BaichuanForCausalLM",
        {
            **{key: _SIZES[key] for key in _SIZES if key not in ("num_key_value_heads", "max_position_embeddings")},
            "model_max_length": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
        },
    ),
    "apertus": (
        "ApertusForCausalLM",
        {
            **_SIZES,
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            },
        },
    ),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        {**_LATENT, "topk_method": "group_limited_greedy", "norm_topk_prob": False, "rope_parameters": _LATENT_YARN},
    ),
    "deepseek_v2_lite": (  # without a latent for queries
        "DeepseekV2ForCausalLM",
        {
            **_LATENT, "q_lora_rank": None, "topk_method": "greedy", "norm_topk_prob": False, "n_group": None,
            "topk_group": None, "routed_scaling_factor": 1.0,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {**_LATENT, "rope_parameters": {**_LATENT_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", _LATENT),
    "granite_hybrid": (  # without rotation
        "GraniteMoeHybridForCausalLM",
        {**_GRANITE_HYBRID, "num_local_experts": 6, "num_experts_per_tok": 3},
    ),
    "granite_hybrid_dense": (
        "GraniteMoeHybridForCausalLM",
        {
            **_GRANITE_HYBRID, "num_local_experts": 0, "position_embedding_type": "rope", "rope_parameters": _PLAIN,
            "layer_types": ["linear_attention"] * 2 + ["full_attention"] * 2 + ["linear_attention"],
            "mamba_n_groups": 1, "mamba_d_conv": 3, "mamba_conv_bias": False, "mamba_proj_bias": True,
            "time_step_limit": [0.015, 0.02],
        },
    ),
    "granite_hybrid_attention": (  # the smallest ones have no state spaces
        "GraniteMoeHybridForCausalLM",
        {
            **_GRANITE_HYBRID, "num_local_experts": 0, "position_embedding_type": "rope", "rope_parameters": _PLAIN,
            "num_hidden_layers": 3, "layer_types": ["full_attention"] * 3,
        },
    ),
    "falcon_h1": ("FalconH1ForCausalLM", _FALCON_H1),
    "falcon_h1_norm": (
        "FalconH1ForCausalLM",
        {**_FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "falcon_h1_norm_first": (
        "FalconH1ForCausalLM", {**_FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": True},
    ),
    "nemotron_h": (
        "NemotronHForCausalLM",
        {
            **_NEMOTRON_H,
            "layers_block_type": ["linear_attention", "mlp"] * 2 + ["linear_attention", "full_attention", "mlp"],
        },
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_hidden_layers": 3, "num_heads": 4, "head_dim": 32,
            "n_groups": 2, "state_size": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        },
    ),
    "jamba": (
        "JambaForCausalLM",
        {
            **_SIZES, "num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2,
            "expert_layer_offset": 1, "num_experts": 6, "num_experts_per_tok": 3, "mamba_d_state": 16,
            "mamba_dt_rank": 32,
        },
    ),
    "lfm2": (
        "Lfm2ForCausalLM",
        {
            **_SIZES, "num_hidden_layers": 5, "block_multiple_of": 32, "conv_L_cache": 3, "tie_word_embeddings": False,
            "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"], "rope_parameters": _PLAIN,
        },
    ),
    "lfm2_biases": (  # a longer convolution with biases, and blocks of the size that is stated
        "Lfm2ForCausalLM",
        {
            **_SIZES, "num_hidden_layers": 3, "block_auto_adjust_ff_dim": False, "conv_L_cache": 4, "conv_bias": True,
            "layer_types": ["full_attention", "conv", "conv"], "rope_parameters": _PLAIN,
        },
    ),
    "lfm2_moe": (  # experts behind a layer of each kind
        "Lfm2MoeForCausalLM",
        {
            **_SIZES, "num_hidden_layers": 5, "num_dense_layers": 2, "num_experts": 6, "num_experts_per_tok": 3,
            "moe_intermediate_size": 32, "routed_scaling_factor": 1.5, "conv_L_cache": 3, "tie_word_embeddings": False,
            "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"], "rope_parameters": _PLAIN,
        },
    ),
    "nemotron_h_moe": (
        "NemotronHForCausalLM",
        {
            **_NEMOTRON_H, **_NEMOTRON_EXPERTS,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "linear_attention", "mlp"],
        },
    ),
    "nemotron_h_moe_latent": (  # experts of a latent of the hidden state, in groups
        "NemotronHForCausalLM",
        {
            **_NEMOTRON_H, **_NEMOTRON_EXPERTS, "moe_latent_size": 32, "n_group": 2, "topk_group": 1,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "linear_attention"],
        },
    ),
    "mistral4": (
        "Mistral4ForCausalLM",
        {
            **_LATENT,
            "rope_parameters": {
                **_LATENT_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "factor": 16.0,
                "original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.5,
            },
        },
    ),
    "bailing_moe2": (
        "BailingMoeV2ForCausalLM",
        {
            **{key: value for key, value in _ROUTED.items() if not key.startswith(("n_routed", "n_shared", "rope_"))},
            "num_experts": 8, "num_shared_experts": 2, "rope_theta": 5000.0, "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1e-6, "use_qk_norm": True, "hidden_act": "silu",
        },
    ),
    "internlm2": (
        "InternLM2ForCausalLM",
        {
            **_SIZES, "bias": True, "rope_theta": 5000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "tie_word_embeddings": False, "rope_scaling": None,
        },
    ),
    "smallthinker": (  # the first of each four layers sees all, and does not rotate
        "SmallThinkerForCausalLM",
        {
            **_SMALLTHINKER, "sliding_window_layout": [0, 1, 1, 1, 0], "rope_layout": [0, 1, 1, 1, 0],
            "sliding_window_size": 30, "moe_primary_router_apply_softmax": False,
        },
    ),
    "smallthinker_softmax": (
        "SmallThinkerForCausalLM",
        {
            **_SMALLTHINKER, "num_hidden_layers": 3, "sliding_window_layout": [0] * 3, "rope_layout": [1] * 3,
            "sliding_window_size": 4096, "moe_primary_router_apply_softmax": True,
        },
    ),
    "olmo_hybrid": (  # without rotation
        "OlmoHybridForCausalLM",
        {
            **_SIZES, "num_hidden_layers": 5, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
            "linear_num_key_heads": 4, "linear_num_value_heads": 4,
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
            "layer_types": ["linear_attention", "full_attention"] * 2 + ["linear_attention"],
        },
    ),
    "olmo_hybrid_rotary": (  # with rotation, and steps that turn no state around
        "OlmoHybridForCausalLM",
        {
            **_SIZES, "num_hidden_layers": 3, "linear_key_head_dim": 32, "linear_value_head_dim": 16,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "rope_parameters": _PLAIN,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            "linear_allow_neg_eigval": False, "tie_word_embeddings": True,
        },
    ),
    "deepseek_v32": (  # an index that picks all tokens of the longest context that is served
        "DeepseekV32ForCausalLM",
        {
            **_LATENT, "index_topk": 128, "index_head_dim": 32, "index_n_heads": 2,
            "rope_parameters": {**_LATENT_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek_v32_long": (  # an index that picks some of the tokens
        "DeepseekV32ForCausalLM",
        {
            **_LATENT, "index_topk": 32, "index_head_dim": 32, "index_n_heads": 16,
            "rope_parameters": {**_LATENT_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "minicpm3": (
        "MiniCPM3ForCausalLM",
        {
            **_ALL_HEADS, "q_lora_rank": 32, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32,
            "num_key_value_heads": 4, "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 500.0, "original_max_position_embeddings": 512,
                "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.5, 1.6, 1.7],
                "long_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.5, 1.6, 1.7],
            },
        },
    ),
    "olmo": ("OlmoForCausalLM", {**_SIZES, "clip_qkv": 0.75, "rope_parameters": _PLAIN}),
    "orion": (
        "OrionForCausalLM",
        {**_SIZES, "rope_theta": 5000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False},
    ),
    "xverse": (
        "XverseForCausalLM",
        {**_SIZES, "rope_theta": 5000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False},
    ),
    "gpt_bigcode": (
        "GPTBigCodeForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        },
    ),
    "phimoe": (  # routers that let several experts count in a share
        "PhimoeForCausalLM",
        {
            **_SIZES, "num_local_experts": 6, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True,
            "router_jitter_noise": 0.3,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 500.0, "original_max_position_embeddings": 512,
                "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.5, 1.6, 1.7],
                "long_factor": [1.0, 1.5, 2.0, 3.5, 5.0, 8.0, 9.0, 9.5], "short_mscale": 1.25, "long_mscale": 1.5,
            },
        },
    ),
    "bailing_moe": (
        "BailingMoeForCausalLM",
        {
            **_SIZES, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3,
            "num_shared_experts": 2, "norm_topk_prob": True, "first_k_dense_replace": 0, "rope_theta": 5000.0,
            "rms_norm_eps": 1e-6, "hidden_act": "silu", "norm_head": False, "use_bias": False, "use_qkv_bias": False,
            "tie_word_embeddings": False,
        },
    ),
    "mamba": (
        "MambaForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_hidden_layers": 3, "state_size": 16,
            "time_step_rank": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
            "tie_word_embeddings": False,
        },
    ),
    "plamo2": (  # a layer that sees all, and one with a window
        "Plamo2ForCausalLM",
        {**_PLAMO2, "full_attention_idx": [4], "rope_theta": 5000.0, "rope_local_theta": 500.0},
    ),
    "plamo3": (
        "Plamo3ForCausalLM",
        {
            **_LLAMA, "num_hidden_layers": 4, "window_size": 30, "sliding_window_pattern": 2, "rope_theta": 5000.0,
            "rope_local_theta": 500.0, "rope_scaling_factor": 4, "initial_context_length": 64, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
        },
    ),
    "opt": (
        "OPTForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_hidden_layers": 3, "ffn_dim": 96,
            "num_attention_heads": 4, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
            "pad_token_id": 0, "tie_word_embeddings": False,
        },
    ),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_layers": 3, "num_heads": 4, "intermediate_size": 96,
            "attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 24,
            "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
        },
    ),
    "gptj": (
        "GPTJForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "n_embd": 64, "n_layer": 3, "n_head": 2, "rotary_dim": 16, "n_inner": 96,
            "n_positions": 512, "bos_token_id": 1, "eos_token_id": 2,
        },
    ),
    "codegen": (
        "CodeGenForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "n_embd": 128, "n_layer": 3, "n_head": 8, "rotary_dim": 8, "n_inner": 96,
            "n_positions": 512, "bos_token_id": 1, "eos_token_id": 2,
        },
    ),
    "codeshell": (
        "CodeShellForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "n_inner": 96,
            "group_query_attention": True, "num_query_groups": 2, "position_embedding_type": "rope",
            "activation_function": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False,
        },
    ),
    "refact": (
        "GPTRefactForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512,
            "layer_norm_epsilon": 1e-5, "multi_query": True, "tie_word_embeddings": False,
        },
    ),
    "chatglm": (
        "ChatGLMModel",
        {
            "padded_vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_layers": 3, "num_attention_heads": 4,
            "kv_channels": 32, "ffn_hidden_size": 96, "seq_length": 512, "layernorm_epsilon": 1e-5,
            "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True, "add_bias_linear": False,
            "rope_ratio": 0.5,
        },
    ),
    "openelm": (  # layers that grow
        "OpenELMForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "model_dim": 64, "num_transformer_layers": 4, "head_dim": 32,
            "num_query_heads": [4, 4, 6, 8], "num_kv_heads": [2, 2, 3, 4], "ffn_multipliers": [0.5, 1.0, 1.0, 1.7],
            "ffn_dim_divisor": 32, "max_context_length": 512, "rope_freq_constant": 5000,
            "share_input_output_layers": True, "ffn_with_glu": True, "normalize_qk_projections": True,
            "activation_fn_name": "swish", "normalization_layer_name": "rms_norm",
        },
    ),
    "pangu": (
        "PanguEmbeddedForCausalLM",
        {
            **_SIZES, "bias": True, "rope_theta": 5000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
            "hidden_act": "silu",
        },
    ),
    "cwm": (
        "CwmForCausalLM",
        {
            **_LLAMA, "sliding_window": 30, "rope_parameters": _PLAIN,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    "helium": ("HeliumForCausalLM", {**_SIZES, "head_dim": 16, "rope_parameters": _PLAIN}),
    "vaultgemma": (
        "VaultGemmaForCausalLM",
        {
            **_GEMMA, "head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 24,
            "attn_logit_softcapping": 2.0, "final_logit_softcapping": 8.0, "rope_parameters": _PLAIN,
        },
    ),
    "hyperclovax": (
        "HyperCLOVAXForCausalLM",
        {
            **_SIZES, "embedding_multiplier": 3.0, "attention_multiplier": 0.125, "residual_multiplier": 0.75,
            "logits_scaling": 2.0, "rope_parameters": _PLAIN, "tie_word_embeddings": False,
        },
    ),
    "solar_open": (
        "SolarOpenForCausalLM",
        {
            **{key: _ROUTED[key] for key in _ROUTED if key not in ("first_k_dense_replace", "intermediate_size")},
            "num_hidden_layers": 3,
        },
    ),
    "falcon_mamba": (
        "FalconMambaForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "hidden_size": 64, "num_hidden_layers": 3, "state_size": 16,
            "time_step_rank": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
            "tie_word_embeddings": False,
        },
    ),
    "youtu": (
        "YoutuForCausalLM",
        {
            **{key: _LATENT[key] for key in _LATENT if key not in _ROUTING}, "tie_word_embeddings": True,
            "pad_token_id": None,
        },
    ),
    "plm": (
        "PLMForCausalLM",
        {
            **{key: _LATENT[key] for key in _LATENT if key not in (*_ROUTING, "rope_parameters", "q_lora_rank")},
            "rope_theta": 5000.0, "rms_norm_eps": 1e-6, "hidden_act": "relu2", "tie_word_embeddings": True,
            "pad_token_id": None,
        },
    ),
    "laguna": (  # heads and rotations of two kinds
        "LagunaForCausalLM",
        {
            **_LAGUNA, "num_attention_heads_per_layer": [4, 6, 6, 4, 6], "sliding_window": 24,
            "layer_types": [
                "full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
            ],
        },
    ),
    "step35": (  # the same, and limits; what is said of a layer behind the last one is left out
        "Step3p5ForCausalLM",
        {
            "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5,
            "num_attention_heads": 4, "num_attention_groups": 2, "head_dim": 32, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5, "moe_num_experts": 6, "moe_top_k": 3, "moe_intermediate_size": 32,
            "share_expert_dim": 64, "moe_router_scaling_factor": 1.5, "norm_expert_weight": True,
            "moe_layers_enum": "1,2,3,4", "sliding_window": 24, "num_nextn_predict_layers": 1,
            "layer_types": [
                "full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
                "full_attention",
            ],
            "attention_other_setting": {
                "attention_type": "sliding_attention", "num_attention_heads": 6, "num_attention_groups": 2,
                "head_dim": 32,
            },
            "rope_theta": [5000.0, 500.0, 500.0, 5000.0, 500.0, 5000.0],
            "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0, 0.5], "yarn_only_types": ["full_attention"],
            "rope_scaling": {
                "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "swiglu_limits": [0.0, 0.0, 0.0, 0.1, 0.2, 0.0],
            "swiglu_limits_shared": [0.0, 0.0, 0.0, 0.0, 0.15, 0.0],
            "use_qk_norm": True, "use_head_wise_attn_gate": True, "tie_word_embeddings": False,
            "bos_token_id": 1, "eos_token_id": 2,
        },
    ),
    "laguna_features": (  # a gate for each feature, and no windows
        "LagunaForCausalLM", {**_LAGUNA, "gating": "per-element", "layer_types": ["full_attention"] * 5},
    ),
    "gpt_oss": ("GptOssForCausalLM", _GPT_OSS),
    "gpt_oss_limited": (  # gates and ups beyond a limit that no GGUF file states, windows in other layers
        "GptOssForCausalLM",
        {
            **_GPT_OSS, "swiglu_limit": 0.75, "swiglu_alpha": 2.5, "attention_bias": False,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
}  # fmt: skip

# Where transformers chooses by the length of a sequence, all sequences are on the same side.
PROMPT_LENGTHS_OF: dict[str, tuple[int, ...]] = {"phi3_long": (65, 70, 100, 90), "falcon_alibi": (3, 70, 100, 300)}

# Where transformers' plain attention adds biases by distance twice, another one that adds them once.
ATTENTION_OF: dict[str, str] = {"falcon_alibi": "sdpa"}
