"""Writes a GGUF file of random weights, with the vocabulary of another file."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGUFValueType, GGUFWriter, LlamaFileType

from benchmarks.models.random_tensors import random_tensor, stored_shape
from benchmarks.models.shapes import ModelShape
from engine.weights.formats.gguf_file import GGUFFile

_NORMAL = 1  # of `tokenizer.ggml.token_type`


def write_random(
    path: Path, name: str, shape: ModelShape, vocabulary: Path, told: Callable[[int, int], None], seed: int = 0
) -> None:
    """Writes tensor by tensor, so that one of them is in memory at a time. The same seed gives the same file.

    Args:
        vocabulary: a GGUF file with a vocabulary of byte-level BPE; tokens that the shape has beyond it are never
            made of a text, and are written as `[1234]`.
        told: called with the number of tensors that are written, and of all.

    Raises:
        ValueError: the vocabulary has more tokens than the shape.
        ModelError, OSError: a file cannot be read or written.
    """
    tensors = list(shape.tensors())
    writer = GGUFWriter(path, shape.architecture)
    try:
        writer.add_name(name)
        writer.add_file_type(LlamaFileType.MOSTLY_Q4_K_M)
        writer.add_quantization_version(2)
        for key, value in shape.fields().items():
            kind = GGUFValueType.FLOAT32 if isinstance(value, float) else GGUFValueType.UINT32
            writer.add_key_value(f"{shape.architecture}.{key}", value, kind)
        _copy_vocabulary(GGUFFile(vocabulary), writer, shape.vocab_size)
        random = np.random.default_rng(seed)
        for tensor in tensors:
            sizes, dtype = stored_shape(tensor.shape, tensor.kind)
            writer.add_tensor_info(tensor.name, sizes, dtype, math.prod(sizes) * dtype.itemsize, tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for done, tensor in enumerate(tensors):
            told(done, len(tensors))
            writer.write_tensor_data(random_tensor(random, tensor.shape, tensor.kind))
        told(len(tensors), len(tensors))
    finally:
        writer.close()


def _copy_vocabulary(file: GGUFFile, writer: GGUFWriter, vocab_size: int) -> None:
    for key, field in file.fields.items():
        if not key.startswith("tokenizer."):
            continue
        value, kinds = file.value(key), field.types
        if key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
            assert isinstance(value, list)
            num_missing = vocab_size - len(value)
            if num_missing < 0:
                raise ValueError(f"the vocabulary has {len(value)} tokens, more than the shape's {vocab_size}")
            texts = [f"[{token_id}]" for token_id in range(len(value), vocab_size)]
            value = [*value, *(texts if key.endswith("tokens") else [_NORMAL] * num_missing)]
        writer.add_key_value(key, value, kinds[0], kinds[1] if kinds[0] is GGUFValueType.ARRAY else None)
