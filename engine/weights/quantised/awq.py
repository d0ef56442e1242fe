"""Matrices of AWQ (Lin et al., "AWQ", 2023) in the "gemm" layout of the AutoAWQ project."""

import numpy as np

from engine.weights.quantised.parts import FLOATS, WORDS, Parts, groups_of, unpacked_awq

NAMES = frozenset({"qweight", "qzeros", "scales"})


class AwqIntegers:
    """`Integers` of 4 bits: words [inputs, outputs / 8], zeros [groups, outputs / 8], scales [groups, outputs]."""

    bits = 4

    def __init__(self, parts: Parts, group_size: int) -> None:
        """Raises ModelError if a tensor is missing, or of another type or shape."""
        self._parts = parts
        self._words, self._scales = parts.matrix("qweight", WORDS), parts.matrix("scales", FLOATS)
        self._zeros = parts.matrix("qzeros", WORDS)
        num_inputs, num_outputs = self._words.shape[0], self._words.shape[1] * 8
        self.name, self.shape = f"{parts.module}.weight", (num_outputs, num_inputs)
        self.num_bytes = parts.num_bytes
        self.groups = groups_of(num_inputs, group_size)
        num_groups = int(self.groups[-1]) + 1 if num_inputs else 0
        parts.check("scales", (num_groups, num_outputs))
        parts.check("qzeros", (num_groups, num_outputs // 8))

    def numbers(self, start: int, stop: int) -> np.ndarray:
        return _outputs(self._words.array, start, stop)

    def scales(self, start: int, stop: int) -> np.ndarray:
        return self._scales.array[:, start:stop].T

    def zeros(self, start: int, stop: int) -> np.ndarray:
        return _outputs(self._zeros.array, start, stop).astype(np.int16)

    def forget(self) -> None:
        self._parts.forget()


def _outputs(words: np.ndarray, start: int, stop: int) -> np.ndarray:
    """uint8[stop - start, rows] of int32[rows, outputs / 8]."""
    first = start // 8
    numbers = unpacked_awq(words[:, first : -(-stop // 8)])
    return numbers[:, start - first * 8 : stop - first * 8].T
