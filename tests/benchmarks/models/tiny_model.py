"""A complete model as a GGUF file: a few thousand random weights and a vocabulary of bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tests.server.support.gguf_files import byte_level_fields

HIDDEN, INTERMEDIATE, NUM_HEADS, NUM_KV_HEADS, CONTEXT_LENGTH = 64, 96, 4, 2, 256
KV_SIZE = HIDDEN // NUM_HEADS * NUM_KV_HEADS
FIELDS = byte_level_fields()
VOCAB_SIZE = len(FIELDS["tokenizer.ggml.tokens"])
MATRICES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KV_SIZE, HIDDEN),
    "attn_v": (KV_SIZE, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (INTERMEDIATE, HIDDEN),
    "ffn_up": (INTERMEDIATE, HIDDEN),
    "ffn_down": (HIDDEN, INTERMEDIATE),
}


def write_tiny_model(path: Path, *, add_bos_token: bool = False, is_blind: bool = False) -> Path:
    """Writes a model of two layers. A blind model has an embedding of zeros, so all tokens are equally probable."""
    random = np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(FIELDS["tokenizer.ggml.tokens"])
    writer.add_token_types(FIELDS["tokenizer.ggml.token_type"])
    writer.add_token_merges(FIELDS["tokenizer.ggml.merges"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(add_bos_token)
    embedding = random.standard_normal((VOCAB_SIZE, HIDDEN)).astype(np.float32)
    writer.add_tensor("token_embd.weight", embedding * np.float32(not is_blind))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(2):
        for name, shape in MATRICES.items():
            weight = random.standard_normal(shape).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.{name}.weight", weight / np.float32(shape[1] ** 0.5))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
