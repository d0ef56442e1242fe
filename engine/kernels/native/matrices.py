"""Weights as packed matrices, in the format of the file where a kernel takes it."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from engine.border.errors import ModelError
from engine.weights.host_memory import large_array
from engine.weights.layout import LayerTensors, Precision
from engine.weights.packing import (
    GROUP,
    TILE,
    Format,
    PackedMatrix,
    PackingError,
    alternate_tiles,
    pack_floats,
    pack_quantised,
    quantise,
    widen,
)
from engine.weights.tensors import ModelTensor


class PackedLayout:
    """A `WeightsLayout` of packed matrices; of a gated product, the tiles of gates and ups alternate."""

    can_quantise = True

    def num_bytes(self, layers: LayerTensors, precision: Precision, *, is_gated: bool) -> int:
        kind = packed_format([tensor for tensors in layers for tensor in tensors], precision)
        num_outputs, num_inputs = sum(tensor.shape[0] for tensor in layers[0]), layers[0][0].shape[1]
        return len(layers) * -(-num_outputs // TILE) * (num_inputs // GROUP) * kind.block_bytes

    def vector_dtype(self, precision: Precision) -> str:
        return "float32"

    def matrix(self, layers: LayerTensors, precision: Precision, *, is_gated: bool) -> PackedMatrix:
        kind = packed_format([tensor for tensors in layers for tensor in tensors], precision)
        # Written in place, so that no second copy of it is ever held.
        num_outputs, num_inputs = sum(tensor.shape[0] for tensor in layers[0]), layers[0][0].shape[1]
        stack = large_array((len(layers), -(-num_outputs // TILE), num_inputs // GROUP, kind.block_bytes), np.uint8)
        for target, tensors in zip(stack, layers, strict=True):
            parts = [_packed(tensor, kind, precision) for tensor in tensors]
            target[:] = alternate_tiles(*parts) if is_gated else np.concatenate(parts)
        return PackedMatrix(jax.device_put(stack), kind, num_outputs)

    def embedding(self, tensor: ModelTensor, precision: Precision) -> PackedMatrix:
        return self.matrix([[tensor]], precision, is_gated=False)

    def dtype_name(self, matrix: PackedMatrix) -> str:
        return matrix.format.name.lower().removesuffix("_min")


def packed_format(tensors: Sequence[ModelTensor], precision: Precision) -> Format:
    """The one format in which tensors are packed that make one leaf."""
    if precision.dtype == "float32":
        return Format.FLOAT32
    if precision.dtype == "bfloat16":
        return Format.BFLOAT16
    formats = {tensor.format if tensor.format.is_integer else _format_of_floats(precision) for tensor in tensors}
    if len(formats) == 1:
        return formats.pop()
    if any(not kind.is_integer for kind in formats):
        return Format.BFLOAT16
    return Format.INT4_MIN if all(kind.is_nibbles for kind in formats) else Format.INT8_MIN


def _format_of_floats(precision: Precision) -> Format:
    """What becomes of a tensor of floats where the type is left open."""
    return {None: Format.BFLOAT16, "int8": Format.INT8, "int4": Format.INT4_MIN}[precision.quantize]


def _packed(tensor: ModelTensor, kind: Format, precision: Precision) -> np.ndarray:
    """uint8[tiles, groups, block bytes]."""
    if not kind.is_integer:
        return pack_floats(tensor.float32(), kind)
    try:
        if tensor.format.is_integer:
            quantised = tensor.quantised()
        else:
            quantised = quantise(tensor.float32(), 4 if _format_of_floats(precision).is_nibbles else 8)
        return pack_quantised(quantised if quantised.format is kind else widen(quantised, kind))
    except PackingError as error:
        raise ModelError(f"{tensor.name} cannot be packed: {error}") from error
