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
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGUFWriter

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


def nothing(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """Adds no fields."""


def head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


# By transformers' class: the architecture, what is done to tensors, and the fields that others do not have.
TWINS: dict[str, tuple[MODEL_ARCH, Transform, Extra]] = {
    "LlamaForCausalLM": (MODEL_ARCH.LLAMA, adjacent_pairs, nothing),
}


def write_gguf(path: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """Writes the model of a folder's `config.json` and tensors."""
    architecture, transform, extra = TWINS[config["architectures"][0]]
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
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        writer.add_tensor(stored, np.ascontiguousarray(transform(name, values, config)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
