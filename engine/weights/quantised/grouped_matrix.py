"""A matrix of integers with scales and zero points, converted to a packed format or to floats."""

from __future__ import annotations

from functools import cached_property
from threading import Lock
from typing import Protocol

import numpy as np

from engine.interface.errors import ModelError
from engine.weights.encodings import EncodedRows, Encoding
from engine.weights.packing import GROUP, Format, to_nibbles


class Integers(Protocol):
    """The stored form of a matrix: weight = scale * (number - zero point)."""

    name: str
    shape: tuple[int, int]  # outputs, inputs
    bits: int  # 4 or 8

    @property
    def num_bytes(self) -> int:
        """In the file."""

    @property
    def groups(self) -> np.ndarray:
        """int[inputs]: the group of each input; raises ModelError if a group does not exist."""

    def numbers(self, start: int, stop: int) -> np.ndarray:
        """uint8[stop - start, inputs]."""

    def scales(self, start: int, stop: int) -> np.ndarray:
        """[stop - start, groups], of the type in the file."""

    def zeros(self, start: int, stop: int) -> np.ndarray | None:
        """Zero points, int[stop - start, groups]; None: all are half of the numbers' range."""

    def forget(self) -> None:
        """Returns the pages of the file that have been read."""


class GroupedMatrix:
    """A `FileTensor` of integers, read lazily.

    It stays exact in a packed format if all 32 inputs of a group have one scale, which float16 holds exactly; otherwise
    each weight is computed in float32 and rounded once, to bfloat16.
    """

    def __init__(self, integers: Integers) -> None:
        self._integers = integers

    @property
    def name(self) -> str:
        return self._integers.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self._integers.shape

    @property
    def num_bytes(self) -> int:
        return self._integers.num_bytes

    @cached_property
    def format(self) -> Format:
        kind = self._exact_format()
        self._integers.forget()
        return kind

    def float32(self) -> np.ndarray:
        matrix = self._rows(0, self.shape[0])
        self._integers.forget()
        return matrix

    def encoded(self) -> EncodedRows:
        encodings = {
            Format.INT4: Encoding.Q4_0, Format.INT8: Encoding.Q8_0,
            Format.INT4_ZERO: Encoding.Q4_ZERO, Format.INT8_ZERO: Encoding.Q8_ZERO,
        }  # fmt: skip
        encoding = encodings.get(self.format, Encoding.F32)
        left, lock = self.shape[0], Lock()

        def read(start: int, stop: int) -> np.ndarray:
            if encoding is Encoding.F32:
                return self._rows(start, stop).view(np.uint8)
            return self._encoded(start, stop)

        def forget(rows: np.ndarray) -> None:
            # The rows of some outputs lie among those of all others: the file's pages are given back after the last.
            nonlocal left
            with lock:
                left -= len(rows)
                is_last = left <= 0
            if is_last:
                self._integers.forget()

        return EncodedRows(encoding, *self._integers.shape, read=read, forget=forget)

    def expert(self, index: int) -> GroupedMatrix:
        raise ModelError(f"{self.name} is a matrix, and does not hold several experts")

    def _exact_format(self) -> Format:
        if self._blocks is None:
            return Format.BFLOAT16
        scales = self._integers.scales(0, self.shape[0])
        with np.errstate(over="ignore"):
            halves = scales.astype(np.float16)
        # A scale that is not finite is left for the packer to refuse.
        if scales.dtype != np.float16 and not np.array_equal(halves.astype(np.float32), scales.astype(np.float32)):
            return Format.BFLOAT16
        is_small = self._integers.bits == 4
        if self._is_symmetric():
            return Format.INT4 if is_small else Format.INT8
        return Format.INT4_ZERO if is_small else Format.INT8_ZERO

    @cached_property
    def _blocks(self) -> np.ndarray | None:
        """int[inputs / 32]: the group of each 32 inputs; None where some of them are of several groups."""
        groups = self._integers.groups
        if len(groups) % GROUP:
            return None
        blocks = groups.reshape(-1, GROUP)
        return blocks[:, 0] if (blocks == blocks[:, :1]).all() else None

    def _is_symmetric(self) -> bool:
        zeros = self._integers.zeros(0, self.shape[0])
        return zeros is None or bool((zeros == 1 << (self._integers.bits - 1)).all())

    def _rows(self, start: int, stop: int) -> np.ndarray:
        """float32[stop - start, inputs]."""
        integers = self._integers
        matrix = integers.numbers(start, stop).astype(np.float32)
        zeros = integers.zeros(start, stop)
        groups = integers.groups
        matrix -= np.float32(1 << (integers.bits - 1)) if zeros is None else zeros.astype(np.float32)[:, groups]
        matrix *= integers.scales(start, stop).astype(np.float32)[:, groups]
        return matrix

    def _encoded(self, start: int, stop: int) -> np.ndarray:
        """uint8[stop - start, bytes of a row], in the encoding of the format."""
        integers, blocks = self._integers, self._blocks
        assert blocks is not None
        numbers = integers.numbers(start, stop).reshape(stop - start, -1, GROUP)
        head = [integers.scales(start, stop).astype(np.float16)[:, blocks]]
        if self.format.has_zero_points:
            zeros = integers.zeros(start, stop)
            assert zeros is not None
            head.append(-zeros.astype(np.float16)[:, blocks])
        if integers.bits == 4:
            numbers = to_nibbles(numbers)
        elif not self.format.has_zero_points:
            numbers = numbers ^ np.uint8(128)  # Q8_0 has signed ones
        halves = np.stack(head, axis=-1).view(np.uint8)
        return np.concatenate([halves, numbers], axis=-1).reshape(stop - start, -1)
