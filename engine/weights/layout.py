"""The interface of a weights layout: how a backend arranges weights in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from engine.interface.config import EngineConfig
from engine.weights.concurrently import run_all
from engine.weights.host_memory import large_array
from engine.weights.leaf import Leaf
from engine.weights.tensors import ModelTensor

Matrix: TypeAlias = Any  # an array or a tree of few; opaque but for the backend whose layout made it
Params: TypeAlias = dict[str, Any]  # leaves by their names: vectors are arrays, all others a Matrix

# The tensors of a leaf: for each layer those that are joined along their outputs.
LayerTensors: TypeAlias = Sequence[Sequence[ModelTensor]]


# Called with the bytes of the file that have been read, from any thread.
Count: TypeAlias = Callable[[int], None]


@dataclass(frozen=True)
class Precision:
    """The configured types of the weights."""

    dtype: str  # float32, bfloat16, or auto: as the file has them where the layout can, and else as the layout likes
    quantize: str | None  # int8 or int4: what a layout that packs makes of floats

    @classmethod
    def of_engine(cls, config: EngineConfig) -> Precision:
        return cls(config.dtype, config.quantize)


EXACT = Precision("float32", None)


class WeightsLayout(Protocol):
    """Makes the leaves that one backend reads. Every tensor is read once, by several threads."""

    @property
    def can_quantise(self) -> bool:
        """Whether it supports the setting `quantize`."""

    def num_bytes(self, leaf: Leaf, layers: LayerTensors, precision: Precision) -> int:
        """Bytes of what `matrix` or `embedding` would make of these tensors, none of which is read."""

    def vector_dtype(self, precision: Precision) -> str:
        """The type of norms and biases."""

    def picture_precision(self, precision: Precision) -> Precision:
        """That of the products of an encoder of pictures."""

    def pair_dtype(self, precision: Precision, layers: LayerTensors = ()) -> str:
        """The type of the pairs of adapters beside the leaf of these tensors; uint8 are numbers with scales."""

    def arranged_pair(self, down: np.ndarray, up: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
        """One adapter's matrices beside a leaf in such a type, as products read them.

        They come as float32[num_layers, columns, inputs] and [num_layers, rank, outputs].
        """

    def vector(self, leaf: Leaf, layers: LayerTensors, precision: Precision, count: Count) -> jax.Array:
        """[num_layers, size], each layer's tensors joined."""

    def matrix(self, leaf: Leaf, layers: LayerTensors, precision: Precision, count: Count) -> Matrix:
        """All layers' matrices as one leaf, of a gated product the gates' tensor and the ups'; raises ModelError."""

    def embedding(self, leaf: Leaf, tensor: ModelTensor, precision: Precision, count: Count) -> Matrix:
        """One matrix [vocab, hidden], to be looked up by rows and multiplied into logits; raises ModelError."""

    def dtype_names(self, matrix: Matrix) -> frozenset[str]:
        """The types in a matrix of this layout, such as "float32" or "int4"."""


def stacked_arrays(layers: LayerTensors, dtype: str, count: Count) -> jax.Array:
    """[num_layers, …], each layer's tensors joined along their outputs and transposed, written in place."""
    joined = (sum(tensor.shape[0] for tensor in layers[0]), *layers[0][0].shape[1:])
    stack = large_array((len(layers), *reversed(joined)), jnp.dtype(dtype))

    def fill(target: np.ndarray, tensor: ModelTensor) -> None:
        target[:] = tensor.float32().T
        count(tensor.num_bytes)

    jobs = []
    for of_layer, tensors in zip(stack, layers, strict=True):
        start = 0
        for tensor in tensors:
            end = start + tensor.shape[0]
            jobs.append(partial(fill, of_layer[..., start:end], tensor))
            start = end
    run_all(jobs)
    array: jax.Array = jax.device_put(stack)
    return array
