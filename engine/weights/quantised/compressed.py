"""Integer matrices in the formats of the compressed-tensors project, packed into words or one in a byte."""

from functools import cached_property

import numpy as np

from engine.interface.errors import ModelError
from engine.weights.quantised.parts import BYTES, FLOATS, SHAPES, WORDS, Part, Parts, unpacked

# Those of activations are not used: Eagre rounds activations in its own way, more finely.
ACTIVATIONS = frozenset({"input_scale", "input_zero_point"})
PACKED_NAMES = ACTIVATIONS | {
    "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
}  # fmt: skip
BYTE_NAMES = ACTIVATIONS | {"weight", "weight_scale", "weight_zero_point"}


class CompressedIntegers:
    """The common part of both formats: scales [outputs, groups], or one for all, and zero points likewise."""

    bits: int
    shape: tuple[int, int]

    def __init__(self, parts: Parts, shape: tuple[int, int]) -> None:
        """Raises ModelError if a tensor is missing, or of another type or shape."""
        self._parts, self.name, self.shape = parts, f"{parts.module}.weight", shape
        num_outputs, num_inputs = shape
        scales = parts.get("weight_scale", FLOATS)
        if scales.size == 1 and scales.ndim < 2:
            self._num_groups = 1
        elif scales.ndim != 2 or scales.shape[0] not in (1, num_outputs) or scales.shape[1] < 1:
            raise ModelError(f"{parts.module}.weight_scale has shape {scales.shape}; {num_outputs} outputs have others")
        else:
            self._num_groups = scales.shape[1]
        if num_inputs % self._num_groups:
            raise ModelError(f"{parts.module}.weight_scale has shape {scales.shape} for {num_inputs} inputs")
        self._scales = scales
        self._order = parts.find("weight_g_idx", WORDS)
        if self._order is not None:
            parts.check("weight_g_idx", (num_inputs,))

    @property
    def num_bytes(self) -> int:
        return self._parts.num_bytes

    @cached_property
    def groups(self) -> np.ndarray:
        """As `Integers`; raises ModelError if `weight_g_idx` names a group that does not exist."""
        num_groups, num_inputs = self._num_groups, self.shape[1]
        order = None if self._order is None else self._order.array
        if order is None or (order == -1).any():  # which says that there is no order
            usual: np.ndarray = np.arange(num_inputs) // max(1, num_inputs // num_groups)
            return usual
        if not 0 <= int(order.min()) <= int(order.max()) < num_groups:
            raise ModelError(f"{self._parts.module}.weight_g_idx names groups beyond the {num_groups} that there are")
        return order

    def scales(self, start: int, stop: int) -> np.ndarray:
        return self._for_outputs(self._scales)[start:stop]

    def forget(self) -> None:
        self._parts.forget()

    def _for_outputs(self, part: Part) -> np.ndarray:
        """[outputs, groups] of scales or zero points, of which there may be one, or one row, for all outputs."""
        array = part.array
        array = array.reshape(1, 1) if array.ndim < 2 else array
        return np.broadcast_to(array, (self.shape[0], self._num_groups))


class PackedIntegers(CompressedIntegers):
    """`Integers` of "pack-quantized": int32[outputs, inputs * bits / 32], zero points in words along the outputs."""

    def __init__(self, parts: Parts) -> None:
        """Raises ModelError if a tensor is missing, or of another type or shape."""
        self._words = parts.matrix("weight_packed", WORDS)
        stored_shape = parts.get("weight_shape", SHAPES)
        parts.check("weight_shape", (2,))
        shape = stored_shape.array
        num_outputs, num_inputs = int(shape[0]), int(shape[1])
        widths = {-(-num_inputs * bits // 32): bits for bits in (4, 8)}
        num_words = self._words.shape[1]
        if num_inputs < 1 or self._words.shape[0] != num_outputs or num_words not in widths:
            raise ModelError(
                f"{parts.module}.weight_packed has shape {self._words.shape}, "
                f"which does not hold ({num_outputs}, {num_inputs}) numbers of 4 or 8 bits"
            )
        self.bits = widths[num_words]
        super().__init__(parts, (num_outputs, num_inputs))
        self._zeros = parts.find("weight_zero_point", WORDS)
        if self._zeros is not None:
            parts.check("weight_zero_point", (-(-num_outputs * self.bits // 32), self._num_groups))

    def numbers(self, start: int, stop: int) -> np.ndarray:
        return unpacked(self._words.array[start:stop], self.bits)[:, : self.shape[1]]

    def zeros(self, start: int, stop: int) -> np.ndarray | None:
        if self._zeros is None:
            return None
        in_word = 32 // self.bits
        first = start // in_word
        zeros = unpacked(self._zeros.array[first : -(-stop // in_word)].T, self.bits)
        return zeros[:, start - first * in_word : stop - first * in_word].T.astype(np.int16)


class ByteIntegers(CompressedIntegers):
    """`Integers` of "naive-quantized" and "int-quantized": int8[outputs, inputs], zero points int8[outputs, groups]."""

    bits = 8

    def __init__(self, parts: Parts) -> None:
        """Raises ModelError if a tensor is missing, or of another type or shape."""
        self._bytes = parts.matrix("weight", BYTES)
        super().__init__(parts, (self._bytes.shape[0], self._bytes.shape[1]))
        self._zeros = parts.find("weight_zero_point", BYTES)
        if self._zeros is not None and self._zeros.size != 1:
            parts.check("weight_zero_point", (self.shape[0], self._num_groups))

    def numbers(self, start: int, stop: int) -> np.ndarray:
        return np.ascontiguousarray(self._bytes.array[start:stop]).view(np.uint8) ^ np.uint8(128)

    def zeros(self, start: int, stop: int) -> np.ndarray | None:
        return (
            None if self._zeros is None else self._for_outputs(self._zeros)[start:stop].astype(np.int16) + np.int16(128)
        )
