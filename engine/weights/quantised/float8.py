"""Matrices of floats with 8 bits (Micikevicius et al., "FP8 formats for deep learning", 2022) and their scales."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from engine.interface.errors import ModelError
from engine.weights.encodings import EncodedRows, Encoding
from engine.weights.packing import Format
from engine.weights.quantised.compressed import ACTIVATIONS
from engine.weights.quantised.parts import FLOAT8, FLOATS, Parts

NAMES = ACTIVATIONS | {"weight", "weight_scale", "weight_scale_inv"}

_VALUES = np.arange(256, dtype=np.uint8).view(jnp.float8_e4m3fn).astype(np.float32)  # of each byte


class Float8Matrix:
    """A `FileTensor` of float8_e4m3fn[outputs, inputs], with one scale for all, for each output, or for each block.

    No packed format has floats of 8 bits, and their range exceeds integers of 8: each weight is multiplied by its scale
    in float32 and rounded to bfloat16, as transformers and compressed-tensors do.
    """

    format = Format.BFLOAT16

    def __init__(self, parts: Parts, part_of_scales: str, block: Sequence[int]) -> None:
        """Args:
            part_of_scales: the name of the tensor that holds them.
            block: outputs and inputs of a block, where there are scales for blocks.

        Raises ModelError: a tensor is missing, or of another type or shape.
        """
        self._parts, self.name = parts, f"{parts.module}.weight"
        self._weight = parts.matrix("weight", FLOAT8)
        self._scales = parts.get(part_of_scales, FLOATS)
        self.shape: tuple[int, ...] = self._weight.shape
        self.num_bytes = parts.num_bytes
        if self._scales.size == 1:
            self._shape_of_scales: tuple[int, ...] = (1, 1)
        elif self._scales.ndim == 1:  # of each output
            self._shape_of_scales = (self._scales.size, 1)
        else:
            self._shape_of_scales = self._scales.shape
        if len(self._shape_of_scales) != 2:
            raise ModelError(f"{parts.module}.{part_of_scales} has shape {self._scales.shape}; it must be a matrix")
        # Which row, and which column, of scales each output and each input has.
        self._rows, self._columns = (
            self._places(axis, size, self._shape_of_scales[axis], block, part_of_scales)
            for axis, size in enumerate(self.shape)
        )

    def float32(self) -> np.ndarray:
        matrix = self._floats(self._weight.stored.read_bytes(0, self.shape[0]), 0, self.shape[0])
        self._parts.forget()
        return matrix

    def encoded(self) -> EncodedRows:
        def read(start: int, stop: int) -> np.ndarray:
            rows = self._weight.stored.read_bytes(start, stop)
            return self._floats(rows, start, stop).view(np.uint8)

        return EncodedRows(Encoding.F32, self.shape[0], self.shape[1], read=read)

    def expert(self, index: int) -> Float8Matrix:
        raise ModelError(f"{self.name} is a matrix, and does not hold several experts")

    def _places(self, axis: int, size: int, count: int, block: Sequence[int], part: str) -> np.ndarray:
        if count in (1, size):
            return np.arange(size) % count
        if not block or count != -(-size // block[axis]):
            raise ModelError(
                f"{self._parts.module}.{part} has shape {self._shape_of_scales}, "
                f"which does not fit weights of shape {self.shape}" + (f" in blocks of {list(block)}" if block else "")
            )
        return np.arange(size) // block[axis]

    def _floats(self, rows: np.ndarray, start: int, stop: int) -> np.ndarray:
        """float32[stop - start, inputs] of uint8[stop - start, inputs]."""
        matrix: np.ndarray = _VALUES[rows]
        scales = self._scales.array.reshape(self._shape_of_scales)[self._rows[start:stop]].astype(np.float32)
        matrix *= scales if scales.shape[1] == 1 else scales[:, self._columns]
        return matrix
