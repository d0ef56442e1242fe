"""Folders' tensors written as GGUF files, as the converter of the ggml project writes them.

Names of tensors and keys come from the gguf package, so that what an architecture declares is checked by a source of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGUFWriter, RopeScalingType

# What a transform takes and gives: the name in the folder, the values, and config.json.
Transform = Callable[[str, np.ndarray, Mapping[str, Any]], np.ndarray]
Extra = Callable[[GGUFWriter, Mapping[str, Any]], None]


def as_stored(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    return values


def adjacent_pairs(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Of queries and keys, the rows of each head: feature i beside feature i + head_dim / 2."""
    if ".q_proj." not in name and ".k_proj." not in name:
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
    rotary = config["rope_parameters"]
    writer.add_rope_freq_base(rotary["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rotary["sliding_attention"]["rope_theta"])
    writer.add_rope_scaling_type(RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(rotary["full_attention"]["factor"])


def nothing(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Adds no fields."""


def head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


NOT_OF_TEXT = ("model.vision_tower.", "model.multi_modal_projector.", "vision_tower.", "multi_modal_projector.")

# By transformers' class: the architecture, what is done to tensors, and the fields that others do not have.
TWINS: dict[str, tuple[MODEL_ARCH, Transform, Extra]] = {
    "LlamaForCausalLM": (MODEL_ARCH.LLAMA, adjacent_pairs, nothing),
    "Gemma2ForCausalLM": (MODEL_ARCH.GEMMA2, norms_with_one, add_gemma2),
    "Gemma3ForCausalLM": (MODEL_ARCH.GEMMA3, norms_with_one, add_gemma3),
    "Gemma3ForConditionalGeneration": (MODEL_ARCH.GEMMA3, norms_with_one, add_gemma3),
}


def write_gguf(path: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """Writes the model of a folder's `config.json` and tensors; of a model with pictures, the text's."""
    architecture, transform, extra = TWINS[config["architectures"][0]]
    config = config.get("text_config", config)
    writer = GGUFWriter(path, MODEL_ARCH_NAMES[architecture])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    rotary = config["rope_parameters"]
    if "rope_theta" in rotary:
        writer.add_rope_freq_base(rotary["rope_theta"])
    extra(writer, config)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, values in tensors.items():
        if name.startswith(NOT_OF_TEXT):
            continue
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        writer.add_tensor(stored, np.ascontiguousarray(transform(name, values, config)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
