"""Transforms of tensors that make all heads of a model equally many and equally wide."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from engine.weights.encodings import EncodedRows
from engine.weights.packing import Format
from engine.weights.tensors import TensorWrapper, Transform


def spread_outputs(num_heads: int, width: int, wider: int, *, scale: float = 1.0) -> Transform:
    """Makes `num_heads` heads of outputs of some that stand for several each, with zeros behind each up to `wider`."""
    return partial(_SpreadOutputs, num_heads=num_heads, width=width, wider=wider, scale=scale)


def spread_inputs(num_heads: int, width: int, wider: int) -> Transform:
    """Puts zeros behind the inputs of each head of a matrix, up to `wider`."""
    return partial(_SpreadInputs, num_heads=num_heads, width=width, wider=wider)


def fewer_heads_of_outputs(num_heads: int, widths: tuple[int, ...], part: int) -> Transform:
    """Takes a part of a tensor with all heads of each part, one part after the other, with heads of zeros behind them.

    Args:
        num_heads: heads of each part in the result; the tensor has as many of each part, or fewer.
        widths: outputs of a head of each part.
    """
    return partial(_FewerOutputs, num_heads=num_heads, widths=widths, part=part)


def fewer_heads_of_inputs(num_heads: int, width: int) -> Transform:
    """Puts heads of zeros behind the inputs of a matrix that has `num_heads` heads, or fewer."""
    return partial(_FewerInputs, num_heads=num_heads, width=width)


@dataclass(frozen=True)
class _SpreadOutputs(TensorWrapper):
    num_heads: int
    width: int
    wider: int
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        """A tensor of another number of rows keeps its shape, so that a check of shapes reports it."""
        whole, count = self.stored.shape, self._num_stored
        return (self.num_heads * self.wider, *whole[1:]) if count else whole

    @property
    def num_bytes(self) -> int:
        return self.stored.num_bytes * self.shape[0] // max(1, self.stored.shape[0])

    @property
    def _num_stored(self) -> int:
        """Heads of the tensor itself; 0 where it has another shape."""
        count, rest = divmod(self.stored.shape[0], self.width) if self.stored.shape else (0, 1)
        return 0 if rest or not count or self.num_heads % count else count

    def float32(self) -> np.ndarray:
        heads = self.stored.float32().reshape(self._num_stored, self.width, -1) * np.float32(self.scale)
        wide = np.pad(heads, ((0, 0), (0, self.wider - self.width), (0, 0)))
        return np.repeat(wide, self.num_heads // self._num_stored, axis=0).reshape(self.shape)

    def encoded(self) -> EncodedRows | None:
        encoded = self.stored.encoded() if self.wider == self.width and self.scale == 1.0 else None
        if encoded is None or not self._num_stored:
            return None
        heads = np.repeat(np.arange(self._num_stored), self.num_heads // self._num_stored)
        return encoded.taken((heads[:, None] * self.width + np.arange(self.width)).ravel())


@dataclass(frozen=True)
class _SpreadInputs(TensorWrapper):
    num_heads: int
    width: int
    wider: int

    @property
    def shape(self) -> tuple[int, ...]:
        """A tensor of another number of columns keeps its shape, so that a check of shapes reports it."""
        whole = self.stored.shape
        is_fitting = len(whole) == 2 and whole[1] == self.num_heads * self.width
        return (whole[0], self.num_heads * self.wider) if is_fitting else whole

    @property
    def num_bytes(self) -> int:
        return self.stored.num_bytes * self.wider // self.width

    def float32(self) -> np.ndarray:
        heads = self.stored.float32().reshape(self.stored.shape[0], self.num_heads, self.width)
        return np.pad(heads, ((0, 0), (0, 0), (0, self.wider - self.width))).reshape(self.shape)

    def encoded(self) -> EncodedRows | None:
        return self.stored.encoded() if self.wider == self.width else None


@dataclass(frozen=True)
class _FewerHeads(TensorWrapper):
    """Whatever the file has, floats: no layer of a stack may differ from the others, and some have heads of zeros."""

    @property
    def format(self) -> Format:
        return Format.BFLOAT16 if self.stored.format.is_integer else self.stored.format

    def encoded(self) -> EncodedRows | None:
        return None


@dataclass(frozen=True)
class _FewerOutputs(_FewerHeads):
    num_heads: int
    widths: tuple[int, ...]
    part: int

    @property
    def shape(self) -> tuple[int, ...]:
        """A tensor of another number of rows keeps its shape, so that a check of shapes reports it."""
        whole = self.stored.shape
        return (self.num_heads * self.widths[self.part], *whole[1:]) if self._num_stored else whole

    @property
    def num_bytes(self) -> int:
        return self.stored.num_bytes * self.widths[self.part] // sum(self.widths)

    @property
    def _num_stored(self) -> int:
        """Heads of each part in the tensor itself; 0 where it has another shape."""
        count, rest = divmod(self.stored.shape[0], sum(self.widths)) if self.stored.shape else (0, 1)
        return 0 if rest or count > self.num_heads else count

    def float32(self) -> np.ndarray:
        start, width = self._num_stored * sum(self.widths[: self.part]), self.widths[self.part]
        taken = self.stored.float32()[start : start + self._num_stored * width]
        missing = (self.num_heads - self._num_stored) * width
        return np.pad(taken, ((0, missing), *[(0, 0)] * (taken.ndim - 1)))


@dataclass(frozen=True)
class _FewerInputs(_FewerHeads):
    num_heads: int
    width: int

    @property
    def shape(self) -> tuple[int, ...]:
        """A tensor that is no such matrix keeps its shape, so that a check of shapes reports it."""
        whole, size = self.stored.shape, self.num_heads * self.width
        is_fitting = len(whole) == 2 and whole[1] <= size and whole[1] % self.width == 0
        return (whole[0], size) if is_fitting else whole

    def float32(self) -> np.ndarray:
        return np.pad(self.stored.float32(), ((0, 0), (0, self.shape[1] - self.stored.shape[1])))
