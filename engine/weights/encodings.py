"""Encodings: the formats in which model files hold rows of weights, and the packed format of the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from engine.weights.packing import Format


class Encoding(IntEnum):
    """How a file holds weights. The values are those of the ggml project's types, and of the native packer.

    The last two are of no file: readers of quantised checkpoints write groups of 32 inputs as a scale and a negated
    zero point, both float16, and 16 bytes as those of Q4_1 or 32 of one number each.
    """

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    Q4_ZERO = 1000
    Q8_ZERO = 1001

    @property
    def format(self) -> Format:
        """The packed format of the same numbers; float32 is rounded to bfloat16."""
        return _FORMATS[self] if self in _FORMATS else Format[self.name]


_FORMATS = {
    Encoding.F32: Format.BFLOAT16,
    Encoding.BF16: Format.BFLOAT16,
    Encoding.F16: Format.FLOAT16,
    Encoding.Q4_0: Format.INT4,
    Encoding.Q4_1: Format.INT4_MIN,
    # Numbers of five bits: integers of eight.
    Encoding.Q5_0: Format.INT8,
    Encoding.Q5_1: Format.INT8_MIN,
    Encoding.Q8_0: Format.INT8,
    Encoding.IQ2_XXS: Format.IQ2_S,
    Encoding.IQ2_XS: Format.IQ2_S,
    Encoding.IQ1_S: Format.IQ1_M,
    Encoding.TQ1_0: Format.IQ1_M,
    Encoding.TQ2_0: Format.IQ1_M,
    Encoding.Q4_ZERO: Format.INT4_ZERO,
    Encoding.Q8_ZERO: Format.INT8_ZERO,
}


@dataclass(frozen=True)
class EncodedRows:
    """A matrix [outputs, inputs] as a file holds it, read lazily."""

    encoding: Encoding
    num_outputs: int
    num_inputs: int
    read: Callable[[int, int], np.ndarray]  # uint8[stop - start, bytes of a row] of the file's rows start to stop
    forget: Callable[[np.ndarray], None] = lambda rows: None  # called with a result of `read` after its last use
    order: np.ndarray | None = None  # int32[num_outputs]: output i is the file's row order[i]; None: row i

    def taken(self, outputs: np.ndarray) -> EncodedRows:
        """The matrix of some of its outputs, in any order, int[outputs of the result]."""
        order = (outputs if self.order is None else self.order[outputs]).astype(np.int32)
        return replace(self, num_outputs=len(outputs), order=order)

    def rows(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The rows of the file that hold the outputs from start to stop, and which of them each output is."""
        if self.order is None:
            return self.read(start, stop), None
        order = self.order[start:stop]
        first = int(order.min())
        return self.read(first, int(order.max()) + 1), order - np.int32(first)
