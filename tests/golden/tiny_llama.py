"""A tiny Llama by formula: the same weights wherever they are made, so that none need to be stored."""

from __future__ import annotations

from typing import Any

import numpy as np

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}

PROMPTS = ([1], [7, 300, 41], list(range(40, 140)), [5, 5, 5, 5, 5, 5, 5, 5, 9])


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor's name in transformers' LlamaForCausalLM, and its shape."""
    hidden, intermediate, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q_size = config["num_attention_heads"] * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (hidden,),
                "self_attn.q_proj": (q_size, hidden),
                "self_attn.k_proj": (kv_size, hidden),
                "self_attn.v_proj": (kv_size, hidden),
                "self_attn.o_proj": (hidden, q_size),
                "post_attention_layernorm": (hidden,),
                "mlp.gate_proj": (intermediate, hidden),
                "mlp.up_proj": (intermediate, hidden),
                "mlp.down_proj": (hidden, intermediate),
            }.items()
        }
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def weights(config: dict[str, Any]) -> dict[str, np.ndarray]:
    """float32; spread evenly over [-1/4, 1/4), norms over [3/4, 5/4)."""
    return {
        name: noise(index, shape) / 4 + (1 if len(shape) == 1 else 0)
        for index, (name, shape) in enumerate(shapes(config).items())
    }


def noise(stream: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers in [-1, 1) that are exact in float32, from an integer hash of stream and position."""
    x = np.arange(np.prod(shape), dtype=np.uint64) + (np.uint64(stream + 1) << np.uint64(32))
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):  # the finaliser of SplitMix64
        x = (x ^ (x >> np.uint64(30))) * np.uint64(multiplier)
    return ((x >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)).reshape(shape)
