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

# By the name of the golden's file: transformers' class, and its configuration.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "LlamaForCausalLM",
        {**_LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
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
}  # fmt: skip
