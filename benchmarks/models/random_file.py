"""Writes a GGUF file of random weights, with the vocabulary of another file."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    quant_shape_to_byte_shape,
)  # fmt: skip

from benchmarks.models.shapes import ModelShape
from engine.weights.formats.gguf_file import GGUFFile

_NORMAL = 1  # of `tokenizer.ggml.token_type`
_Q4_K_SPREAD = 255.0  # standard deviation of a Q4_K weight with random scales, in units of its block's scale
_Q6_K_SPREAD = 170.0  # the same of a Q6_K weight with scales from -16 to 15


def write_random(
    path: Path, name: str, shape: ModelShape, vocabulary: Path, progress: Callable[[int, int], None], seed: int = 0
) -> None:
    """Writes tensor by tensor, so that one of them is in memory at a time. The same seed gives the same file.

    `vocabulary` is a GGUF file with byte-level BPE; tokens that the shape has beyond it are written as `[1234]`.
    `progress` is called with the number of written tensors, and of all. Raises ValueError where the vocabulary is too
    large.
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
            progress(done, len(tensors))
            writer.write_tensor_data(random_tensor(random, tensor.shape, tensor.kind))
        progress(len(tensors), len(tensors))
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


def stored_shape(shape: tuple[int, ...], kind: GGMLQuantizationType) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the type of the array that holds a tensor: of a quantised one, the last axis counts bytes."""
    if kind is GGMLQuantizationType.F32:
        return shape, np.dtype(np.float32)
    return quant_shape_to_byte_shape(shape, kind), np.dtype(np.uint8)


def random_tensor(random: np.random.Generator, shape: tuple[int, ...], kind: GGMLQuantizationType) -> np.ndarray:
    """Weights whose products keep the size of what they multiply, or ones for a vector, as bytes of `stored_shape`.

    The numbers within a block are random bits; only the scale of a block is chosen.
    """
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    deviation = shape[-1] ** -0.5
    if kind is GGMLQuantizationType.F32:
        return random.standard_normal(shape, np.float32) * np.float32(deviation)
    rows, _ = stored_shape(shape, kind)
    blocks = random.integers(0, 256, rows, np.uint8).reshape(-1, GGML_QUANT_SIZES[kind][1])
    match kind:
        case GGMLQuantizationType.Q4_K:  # scale and scale of the minima, eight scales and minima of 6 bits, numbers
            scale = np.float16(deviation / _Q4_K_SPREAD)
            # 7.5 is the mean of a number of four bits, so that the mean of the weights is 0.
            blocks[:, :4] = np.array([scale, np.float16(7.5 * scale)]).view(np.uint8)
        case GGMLQuantizationType.Q6_K:  # numbers, sixteen scales of 8 bits, the scale of these
            blocks[:, 192:208] = (blocks[:, 192:208] % 32 - 16).view(np.uint8)
            blocks[:, 208:] = np.array([deviation / _Q6_K_SPREAD], np.float16).view(np.uint8)
        case _:
            raise ValueError(f"{kind.name} is not written; F32, Q4_K and Q6_K are")
    return blocks.reshape(rows)
