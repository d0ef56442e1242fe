"""The interface of a model file's tensors, and transforms of tensors while they are loaded."""

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from engine.weights.encodings import EncodedRows
from engine.weights.packing import Format


class ModelTensor(Protocol):
    """A tensor of a model file, read lazily."""

    @property
    def name(self) -> str:
        """In the file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major; matrices are [outputs, inputs]."""

    @property
    def num_bytes(self) -> int:
        """In the file."""

    @property
    def format(self) -> Format:
        """The packed format that this tensor gets on its own, without --quantize."""

    def float32(self) -> np.ndarray:
        """The whole tensor, float32[shape]."""

    def encoded(self) -> EncodedRows | None:
        """A matrix as the file holds it; None: it can be read as floats only."""


class FileTensor(ModelTensor, Protocol):
    """A tensor as its file holds it."""

    def expert(self, index: int) -> ModelTensor:
        """One of the tensors that a tensor [num_experts, …] is made of; only that one is ever read."""


class TensorFile(Protocol):
    """Finds tensors by their names."""

    @property
    def names(self) -> Set[str]:
        """Of all tensors of the file."""

    def tensor(self, name: str) -> FileTensor | None:
        """The tensor of a name, or None; raises ModelError if it is stored in a way that is not supported."""


@dataclass(frozen=True)
class TensorWrapper:
    """A tensor of which a subclass changes a part."""

    stored: ModelTensor

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def num_bytes(self) -> int:
        return self.stored.num_bytes

    @property
    def format(self) -> Format:
        return self.stored.format

    def float32(self) -> np.ndarray:
        return self.stored.float32()

    def encoded(self) -> EncodedRows | None:
        return self.stored.encoded()


Transform = Callable[[ModelTensor], ModelTensor]


@dataclass(frozen=True)
class OneMore(TensorWrapper):
    """A norm's weights, of which the file holds the differences from 1; it is a `Transform`."""

    def float32(self) -> np.ndarray:
        return self.stored.float32() + np.float32(1)


def offset(amount: float) -> Transform:
    """Adds a number to a norm's weights, of which the file holds the differences from it."""
    return partial(_Offset, amount=amount)


@dataclass(frozen=True)
class _Offset(TensorWrapper):
    amount: float

    def float32(self) -> np.ndarray:
        return self.stored.float32() + np.float32(self.amount)


@dataclass(frozen=True)
class NegativeExponential(TensorWrapper):
    """Decays, of which the file holds the logarithms of their magnitudes; it is a `Transform`."""

    def float32(self) -> np.ndarray:
        decays: np.ndarray = -np.exp(self.stored.float32())
        return decays


@dataclass(frozen=True)
class Squeezed(TensorWrapper):
    """The weights of a convolution of each channel by itself, [channels, 1, kernel], without axes of one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """A tensor of another shape keeps it, so that a check of shapes reports it."""
        whole = self.stored.shape
        if len(whole) == 4 and whole[0] == 1:  # as GGUF files of Kimi Linear have it
            whole = whole[1:]
        return (whole[0], whole[2]) if len(whole) == 3 and whole[1] == 1 else whole

    def float32(self) -> np.ndarray:
        return self.stored.float32().reshape(self.shape)

    def encoded(self) -> EncodedRows | None:
        return None


@dataclass(frozen=True)
class Transposed(TensorWrapper):
    """A matrix that a file holds as [inputs, outputs]; it is a `Transform`."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(reversed(self.stored.shape))

    def float32(self) -> np.ndarray:
        return self.stored.float32().T

    def encoded(self) -> EncodedRows | None:
        return None


@dataclass(frozen=True)
class AsMatrix(TensorWrapper):
    """A matrix of one output, which a file may hold as a vector; it is a `Transform`."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, *self.stored.shape) if len(self.stored.shape) == 1 else self.stored.shape

    def float32(self) -> np.ndarray:
        return self.stored.float32().reshape(self.shape)

    def encoded(self) -> EncodedRows | None:
        return None


@dataclass(frozen=True)
class AsVector(TensorWrapper):
    """A vector, which a file may hold as a matrix or without an axis; it is a `Transform`."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (math.prod(self.stored.shape),)

    def float32(self) -> np.ndarray:
        return self.stored.float32().reshape(self.shape)

    def encoded(self) -> EncodedRows | None:
        return None


@dataclass(frozen=True)
class Padded(TensorWrapper):
    """A tensor with zeros behind each axis, up to a shape."""

    wanted: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.wanted

    @property
    def format(self) -> Format:
        # Rows of integers end with whole groups, which may not be where the zeros begin.
        return Format.BFLOAT16 if self.stored.format.is_integer else self.stored.format

    def float32(self) -> np.ndarray:
        missing = [(0, wanted - size) for wanted, size in zip(self.shape, self.stored.shape, strict=True)]
        return np.pad(self.stored.float32(), missing)

    def encoded(self) -> EncodedRows | None:
        return None


def reshaped(shape: tuple[int, ...]) -> Transform:
    """Gives a tensor axes of one that a file may leave out."""
    return partial(_Reshaped, wanted=shape)


@dataclass(frozen=True)
class _Reshaped(TensorWrapper):
    wanted: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """A tensor of another shape keeps it, so that a check of shapes reports it."""
        whole = self.stored.shape
        is_same = [each for each in whole if each != 1] == [each for each in self.wanted if each != 1]
        return self.wanted if is_same else whole

    def float32(self) -> np.ndarray:
        return self.stored.float32().reshape(self.shape)

    def encoded(self) -> EncodedRows | None:
        return None


def patch_rows(tensor: ModelTensor) -> ModelTensor:
    """A convolution [outputs, colour, row, column] as the product [outputs, row × column × colour] of patches."""
    return _PatchRows(tensor)


@dataclass(frozen=True)
class _PatchRows(TensorWrapper):
    @property
    def shape(self) -> tuple[int, ...]:
        """A tensor of another shape keeps it, so that a check of shapes reports it."""
        whole = self.stored.shape
        return (whole[0], math.prod(whole[1:])) if len(whole) == 4 else whole

    def float32(self) -> np.ndarray:
        values = self.stored.float32()
        return values.transpose(0, 2, 3, 1).reshape(self.shape) if values.ndim == 4 else values

    def encoded(self) -> EncodedRows | None:
        return None


@dataclass(frozen=True)
class OnlyRow(TensorWrapper):
    """A vector that a file holds as a matrix of one row; it is a `Transform`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """A tensor of another shape keeps it, so that a check of shapes reports it."""
        whole = self.stored.shape
        return whole[1:] if len(whole) == 2 and whole[0] == 1 else whole

    def float32(self) -> np.ndarray:
        return self.stored.float32().reshape(self.shape)

    def encoded(self) -> EncodedRows | None:
        return None


@dataclass(frozen=True)
class UnitRows(TensorWrapper):
    """A matrix whose rows are scaled to the length 1; it is a `Transform`."""

    def float32(self) -> np.ndarray:
        matrix = self.stored.float32()
        unit: np.ndarray = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), np.float32(1e-12))
        return unit

    def encoded(self) -> EncodedRows | None:
        return None


def scaled(*parts: tuple[int, float]) -> Transform:
    """Multiplies the outputs of a tensor, so many of them by each factor."""
    return partial(_Scaled, parts=parts)


@dataclass(frozen=True)
class _Scaled(TensorWrapper):
    parts: tuple[tuple[int, float], ...]

    def float32(self) -> np.ndarray:
        factors = np.concatenate([np.full(count, factor, np.float32) for count, factor in self.parts])
        product: np.ndarray = (self.stored.float32().T * factors).T
        return product

    def encoded(self) -> EncodedRows | None:
        return None


def in_turn(*transforms: Transform) -> Transform:
    """One transform after the other."""

    def transformed(tensor: ModelTensor) -> ModelTensor:
        for transform in transforms:
            tensor = transform(tensor)
        return tensor

    return transformed


def paired_rows(head_dim: int, rotary_dim: int) -> Transform:
    """Reorders rows stored for a rotation of adjacent features: pairs (0, 1), … of a head become halves (0, d/2), ….

    Of each head, the first `rotary_dim` rows are rotated; the others stay where they are.
    """
    return partial(_PairedRows, head_dim=head_dim, rotary_dim=rotary_dim)


def rows(start: int, stop: int, num_rows: int) -> Transform:
    """Takes the outputs from start to stop of a matrix of `num_rows` outputs, in which a file has joined several."""

    return partial(_Rows, start=start, stop=stop, num_rows=num_rows)


def interleaved(num_groups: int, widths: Sequence[int], taken: Sequence[int]) -> Transform:
    """Takes some parts of a tensor whose outputs are groups of several parts, such as the heads of queries and gates.

    Args:
        widths: outputs of each part in a group.
        taken: the indices of the parts; the result has one part of all groups after the other.
    """
    return partial(_Interleaved, num_groups=num_groups, widths=tuple(widths), taken=tuple(taken))


@dataclass(frozen=True)
class _Interleaved(TensorWrapper):
    num_groups: int
    widths: tuple[int, ...]
    taken: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """A tensor of another number of rows keeps its shape, so that a check of shapes reports it."""
        whole = self.stored.shape
        num_taken = self.num_groups * sum(self.widths[part] for part in self.taken)
        return (num_taken, *whole[1:]) if whole[:1] == (self.num_groups * sum(self.widths),) else whole

    @property
    def num_bytes(self) -> int:
        return self.stored.num_bytes * sum(self.widths[part] for part in self.taken) // sum(self.widths)

    def float32(self) -> np.ndarray:
        taken: np.ndarray = self.stored.float32()[self._order()]
        return taken

    def encoded(self) -> EncodedRows | None:
        encoded = self.stored.encoded()
        return None if encoded is None else encoded.taken(self._order())

    def _order(self) -> np.ndarray:
        ends = np.cumsum(self.widths)
        groups = np.arange(self.num_groups * ends[-1]).reshape(self.num_groups, -1)
        parts = [groups[:, end - width : end].ravel() for width, end in zip(self.widths, ends, strict=True)]
        return np.concatenate([parts[part] for part in self.taken])


@dataclass(frozen=True)
class _Rows(TensorWrapper):
    start: int
    stop: int
    num_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """A tensor of another number of rows keeps its shape, so that a check of shapes reports it."""
        whole = self.stored.shape
        return (self.stop - self.start, *whole[1:]) if whole[:1] == (self.num_rows,) else whole

    @property
    def num_bytes(self) -> int:
        return self.stored.num_bytes * (self.stop - self.start) // self.num_rows

    def float32(self) -> np.ndarray:
        return self.stored.float32()[self.start : self.stop]

    def encoded(self) -> EncodedRows | None:
        encoded = self.stored.encoded()
        return None if encoded is None else encoded.taken(np.arange(self.start, self.stop))


@dataclass(frozen=True)
class _PairedRows(TensorWrapper):
    head_dim: int
    rotary_dim: int

    def float32(self) -> np.ndarray:
        reordered: np.ndarray = self.stored.float32()[self._order()]
        return reordered

    def encoded(self) -> EncodedRows | None:
        encoded = self.stored.encoded()
        return None if encoded is None else encoded.taken(self._order())

    def _order(self) -> np.ndarray:
        heads = np.arange(self.shape[0]).reshape(-1, self.head_dim)
        pairs = heads[:, : self.rotary_dim].reshape(len(heads), -1, 2)
        heads[:, : self.rotary_dim] = pairs.swapaxes(1, 2).reshape(len(heads), -1)
        return heads.ravel()
