"""GPTQ matrices (Frantar et al., "GPTQ", 2022) in the format of the AutoGPTQ and GPTQModel projects."""

from functools import cached_property

import numpy as np

from engine.interface.errors import ModelError
from engine.weights.quantised.parts import FLOATS, WORDS, Parts, groups_of, unpacked

NAMES = frozenset({"qweight", "qzeros", "scales", "g_idx"})


class GptqIntegers:
    """`Integers` in words along the inputs, int32[inputs * bits / 32, outputs].

    Zero points are int32[groups, outputs * bits / 32], in version 1 less one, modulo the numbers' range. `g_idx`
    int32[inputs] is the group of each input where inputs were quantised in the order of their activations.
    """

    def __init__(self, parts: Parts, *, bits: int, group_size: int, is_ordered: bool, zero_offset: int) -> None:
        """Args:
            is_ordered: whether `g_idx` counts; else groups are of neighbours.
            zero_offset: is added to a stored zero point: 1 in version 1, 0 in version 2.

        Raises ModelError: a tensor is missing, or of another type or shape.
        """
        self.bits = bits
        self._parts, self._is_ordered, self._group_size, self._zero_offset = parts, is_ordered, group_size, zero_offset
        self._words, self._scales = parts.matrix("qweight", WORDS), parts.matrix("scales", FLOATS)
        self._zeros, self._order = parts.matrix("qzeros", WORDS), parts.find("g_idx", WORDS)
        in_word = 32 // bits
        num_inputs, num_outputs = self._words.shape[0] * in_word, self._words.shape[1]
        self.name, self.shape = f"{parts.module}.weight", (num_outputs, num_inputs)
        self.num_bytes = parts.num_bytes
        num_groups = 1 if group_size == -1 else -(-num_inputs // group_size)
        parts.check("scales", (num_groups, num_outputs))
        parts.check("qzeros", (num_groups, -(-num_outputs // in_word)))
        if self._order is not None:
            parts.check("g_idx", (num_inputs,))

    @cached_property
    def groups(self) -> np.ndarray:
        """As `Integers`; raises ModelError where `g_idx` is missing, wrong, or given though inputs are not ordered."""
        usual = groups_of(self.shape[1], self._group_size)
        order = None if self._order is None else self._order.array
        if not self._is_ordered:
            # Some tools leave zeros where there is no order.
            if order is not None and order.any() and not np.array_equal(order, usual):
                raise ModelError(f"{self._parts.module}.g_idx orders the inputs, although desc_act is false")
            return usual
        if order is None:
            raise ModelError(f"{self._parts.module} lacks the tensor '{self._parts.module}.g_idx'")
        num_groups = self._scales.shape[0]
        if order.size and not 0 <= int(order.min()) <= int(order.max()) < num_groups:
            raise ModelError(f"{self._parts.module}.g_idx names groups beyond the {num_groups} that there are")
        return order

    def numbers(self, start: int, stop: int) -> np.ndarray:
        return unpacked(self._words.array[:, start:stop].T, self.bits)

    def scales(self, start: int, stop: int) -> np.ndarray:
        return self._scales.array[:, start:stop].T

    def zeros(self, start: int, stop: int) -> np.ndarray:
        in_word = 32 // self.bits
        first = start // in_word
        stored = unpacked(self._zeros.array[:, first : -(-stop // in_word)], self.bits)
        zeros = (stored.astype(np.int16) + self._zero_offset) & ((1 << self.bits) - 1)
        return zeros[:, start - first * in_word : stop - first * in_word].T

    def forget(self) -> None:
        self._parts.forget()
