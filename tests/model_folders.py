"""The tiny Llama of `tests/golden/tiny_llama.py` as a model folder and as a GGUF file, with a tiny tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGUFWriter
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from server.text.tokenization.byte_alphabet import byte_of_character
from tests.golden.tiny_llama import CONFIG, weights

SPECIAL_TOKENS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
BOS, EOS, TURN, END_OF_TURN = range(4)
NUM_BYTES_FROM = len(SPECIAL_TOKENS)  # id of byte 0
MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"))
TOOL = "<tool>"  # an added token that is plain text
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENIZER_CONFIG: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>"},
    "chat_template": CHAT_TEMPLATE,
}
TYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def byte_level_tokenizer(*, adds_bos_token: bool = True) -> Tokenizer:
    """Special tokens, the 256 bytes, a few merges and an added token: 266 ids."""
    character = {byte: text for text, byte in byte_of_character().items()}
    tokens = [*SPECIAL_TOKENS, *(character[byte] for byte in range(256)), *("".join(merge) for merge in MERGES)]
    tokenizer = Tokenizer(BPE({token: token_id for token_id, token in enumerate(tokens)}, list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.add_tokens([AddedToken(TOOL, special=False, normalized=False)])
    if adds_bos_token:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return tokenizer


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def write_folder(
    folder: Path,
    *,
    config: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    stored_as: str = "F32",
    num_shards: int = 1,
    tokenizer: Tokenizer | None = None,
    tokenizer_config: dict[str, Any] | None = None,
) -> Path:
    """Writes a whole model folder.

    Args:
        config: changes to the tiny model's `config.json`; None as a value takes the key away.
        tensors: in the place of the tiny model's.
        tokenizer_config: in the place of TOKENIZER_CONFIG.
    """
    folder.mkdir(parents=True, exist_ok=True)
    changed = {key: value for key, value in {**CONFIG, **(config or {})}.items() if value is not None}
    write_json(folder / "config.json", changed)
    if tensors is None:
        tensors = weights({**CONFIG, **changed})
    stored = {name: np.ascontiguousarray(values.astype(TYPES[stored_as])) for name, values in tensors.items()}
    write_tensors(folder, stored, num_shards)
    (tokenizer or byte_level_tokenizer()).save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", TOKENIZER_CONFIG if tokenizer_config is None else tokenizer_config)
    return folder


def write_tensors(folder: Path, tensors: dict[str, np.ndarray], num_shards: int = 1) -> None:
    """One file, or shards with an index; the tensors are dealt out like cards."""
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = {name: values for i, (name, values) in enumerate(tensors.items()) if i % num_shards == shard}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": 0}, "weight_map": weight_map})


def write_gguf_twin(path: Path, fields: Mapping[str, Any] | None = None) -> Path:
    """The tiny model as the converters for GGUF write it: queries and keys for adjacent-pair rotation.

    Args:
        fields: texts, numbers and lists to store besides, such as a vocabulary.
    """
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(CONFIG["num_attention_heads"])
    writer.add_head_count_kv(CONFIG["num_key_value_heads"])
    writer.add_key_length(CONFIG["head_dim"])
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    for key, value in (fields or {}).items():
        add = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}[type(value)]
        add(key, value)
    for name, values in weights(CONFIG).items():
        writer.add_tensor(_gguf_name(name), _adjacent_pairs(values) if is_rotated(name) else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def is_rotated(name: str) -> bool:
    return ".q_proj." in name or ".k_proj." in name


def _gguf_name(name: str) -> str:
    match name.removesuffix(".weight").split(".", 3):
        case ["model", "layers", layer, part]:
            return f"blk.{layer}.{GGUF_NAMES[part]}.weight"
        case ["model", "embed_tokens"]:
            return "token_embd.weight"
        case ["model", "norm"]:
            return "output_norm.weight"
    return "output.weight"


def _adjacent_pairs(weight: np.ndarray) -> np.ndarray:
    """Rows of each head: feature i beside feature i + head_dim / 2."""
    halves = weight.reshape(-1, 2, CONFIG["head_dim"] // 2, weight.shape[-1])
    return halves.swapaxes(1, 2).reshape(weight.shape)
