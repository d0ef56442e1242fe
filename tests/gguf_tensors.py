"""Random tensors in every format of GGUF files that has a packed form, and whole random models of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from gguf.quants import quantize

# Of formats that the gguf package cannot write: weights and bytes of a block, where its float16 scale stands and, where
# it has one, that of the minima; and scales for weights of about 1.
_BLOCKS: dict[Kind, tuple[int, int, dict[int, float]]] = {
    Kind.Q2_K: (256, 84, {80: 1 / 13, 82: 1 / 9}),
    Kind.Q3_K: (256, 110, {108: 1 / 43}),
    Kind.Q4_K: (256, 144, {0: 1 / 200, 2: 1 / 27}),
    Kind.Q5_K: (256, 176, {0: 1 / 400, 2: 1 / 26}),
    Kind.Q6_K: (256, 210, {208: 1 / 1400}),
    Kind.IQ4_NL: (32, 18, {0: 1 / 70}),
    Kind.IQ4_XS: (256, 136, {0: 1 / 1300}),
    Kind.IQ3_XXS: (256, 98, {0: 1 / 160}),
    Kind.IQ3_S: (256, 110, {0: 1 / 130}),
    Kind.IQ2_XXS: (256, 66, {0: 1 / 56}),
    Kind.IQ2_XS: (256, 74, {0: 1 / 56}),
    Kind.IQ2_S: (256, 82, {0: 1 / 56}),
    Kind.IQ1_S: (256, 50, {0: 1 / 8}),
    Kind.IQ1_M: (256, 56, {}),
    Kind.NVFP4: (64, 36, {}),
}

HIDDEN, INTERMEDIATE, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, VOCAB_SIZE = 256, 512, 2, 4, 2, 64, 300
MATRICES = {
    "token_embd": (VOCAB_SIZE, HIDDEN),
    "output": (VOCAB_SIZE, HIDDEN),
    "attn_q": (NUM_HEADS * HEAD_DIM, HIDDEN),
    "attn_k": (NUM_KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (NUM_KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, NUM_HEADS * HEAD_DIM),
    "ffn_gate": (INTERMEDIATE, HIDDEN),
    "ffn_up": (INTERMEDIATE, HIDDEN),
    "ffn_down": (HIDDEN, INTERMEDIATE),
}


def random_rows(random: np.random.Generator, kind: Kind, outputs: int, inputs: int, size: float = 1.0) -> np.ndarray:
    """A matrix as a file holds it, uint8[outputs, bytes] or floats; its weights are of about `size`."""
    if kind not in _BLOCKS:
        weights = random.standard_normal((outputs, inputs)).astype(np.float32) * np.float32(size)
        return weights if kind is Kind.F32 else quantize(weights, kind)
    num_weights, num_bytes, scales = _BLOCKS[kind]
    blocks = random.integers(0, 256, (outputs, inputs // num_weights, num_bytes), np.uint8)
    for offset, scale in scales.items():
        values = random.uniform(0.5, 1.5, blocks.shape[:2]) * scale * size
        blocks[:, :, offset : offset + 2] = values.astype(np.float16)[..., None].view(np.uint8)
    if kind is Kind.NVFP4:  # four scales of a byte
        blocks[:, :, :4] = random.integers(0x24, 0x30, blocks[:, :, :4].shape, np.uint8)
    if kind is Kind.IQ1_M:  # four words have a quarter of the scale each, in their highest bits
        halves = (random.uniform(0.5, 1.5, blocks.shape[:2]) * size / 8).astype(np.float16).view(np.uint16)
        words = blocks[:, :, 48:].view(np.uint16)
        words[:] = words & 0x0FFF | (halves[..., None] >> np.arange(0, 16, 4, dtype=np.uint16)) << 12
    return blocks.reshape(outputs, -1)


def write_random_model(
    path: Path, kind_of: Callable[[str], Kind], *, seed: int = 0, max_shard_tensors: int = 0
) -> Path:
    """A Llama of two layers.

    Args:
        kind_of: the format of a matrix by its name, as in MATRICES.
        max_shard_tensors: how many tensors go into one file; 0 for all. `model.gguf` of two shards is written as
            `model-00001-of-00002.gguf` and `model-00002-of-00002.gguf`.
    """
    random = np.random.default_rng(seed)
    writer = GGUFWriter(path, "llama", split_max_tensors=max_shard_tensors)
    writer.add_block_count(NUM_LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)

    def add(name: str, file_name: str) -> None:
        kind, (outputs, inputs) = kind_of(name), MATRICES[name]
        rows = random_rows(random, kind, outputs, inputs, inputs**-0.5)
        writer.add_tensor(file_name, rows, raw_dtype=kind)

    def add_norm(file_name: str) -> None:
        writer.add_tensor(file_name, random.uniform(0.5, 1.5, HIDDEN).astype(np.float32))

    add("token_embd", "token_embd.weight")
    add("output", "output.weight")
    add_norm("output_norm.weight")
    for layer in range(NUM_LAYERS):
        for name in list(MATRICES)[2:]:
            add(name, f"blk.{layer}.{name}.weight")
        add_norm(f"blk.{layer}.attn_norm.weight")
        add_norm(f"blk.{layer}.ffn_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
