"""The loader: from the tensors of a model file to the parameter tree in memory.

An architecture declares a leaf's tensors, and the backend of the products how a leaf lies in memory.
"""

import math
from collections.abc import Collection, Sequence
from itertools import product
from threading import Lock
from typing import NamedTuple

import jax.numpy as jnp

from engine.interface.errors import ModelError
from engine.interface.types import Progress
from engine.weights.layout import EXACT, Count, LayerTensors, Matrix, Params, Precision, WeightsLayout
from engine.weights.leaf import Leaf, LeafKind, Part, Stored
from engine.weights.tensors import ModelTensor, Padded, TensorFile, rows


class Weights(NamedTuple):
    params: Params
    num_parameters: int  # without what pads them
    dtype: str  # the types of the matrices, such as "float32" or "int4+int8"; without those that are exact always


class LeafTensors:
    """The tensors of a model's leaves, found in a file of one format."""

    def __init__(self, leaves: Sequence[Leaf], num_layers: int, file: TensorFile, file_format: str) -> None:
        self.leaves = leaves
        self._file = file
        self._format = file_format
        self._num_layers = num_layers

    def limited_to(self, names: Collection[str]) -> "LeafTensors":
        """Those of the leaves of these names."""
        leaves = [leaf for leaf in self.leaves if leaf.name in names]
        return LeafTensors(leaves, self._num_layers, self._file, self._format)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, row-major, by its name in the file."""
        return {
            self._name(part, layer, expert): self._stored_shape(leaf, part, part.stored[self._format])
            for leaf in self.leaves
            for part in leaf.parts
            for layer, expert in self._stack(leaf)
        }

    def of(self, leaf: Leaf) -> list[list[ModelTensor]]:
        """A leaf's tensors, layer by layer, and in each layer expert by expert; raises ModelError."""
        return [[self._tensor(leaf, part, *place) for part in leaf.parts] for place in self._stack(leaf)]

    def _stack(self, leaf: Leaf) -> list[tuple[int, int]]:
        """Layer and expert of everything that the leaf stacks, in order; the expert is 0 where there are none."""
        layers: Sequence[int] = (0,)
        if leaf.is_per_layer:
            layers = range(self._num_layers) if leaf.layers is None else leaf.layers
        return list(product(layers, range(leaf.num_experts or 1)))

    def _name(self, part: Part, layer: int, expert: int) -> str:
        return part.stored[self._format].name.format(layer=layer, expert=expert)

    def _holds_all_experts(self, leaf: Leaf, part: Part) -> bool:
        return leaf.num_experts > 0 and "{expert}" not in part.stored[self._format].name

    def _stored_shape(self, leaf: Leaf, part: Part, stored: Stored) -> tuple[int, ...]:
        if not self._holds_all_experts(leaf, part):
            return part.shape
        if stored.joined_shape is not None:
            return (leaf.num_experts * stored.joined_shape[0], stored.joined_shape[1])
        of_expert = (stored.num_outputs or part.shape[0], *part.shape[1:])
        return (leaf.num_experts, *(reversed(of_expert) if stored.is_transposed else of_expert))

    def _tensor(self, leaf: Leaf, part: Part, layer: int, expert: int) -> ModelTensor:
        stored = self._file.tensor(self._name(part, layer, expert))
        if stored is None:
            raise ModelError(f"the file has no tensor {self._name(part, layer, expert)!r}")
        tensor: ModelTensor = stored
        way = part.stored[self._format]
        if self._holds_all_experts(leaf, part):
            expected = self._stored_shape(leaf, part, way)
            if way.otherwise is not None and stored.shape == self._stored_shape(leaf, part, way.otherwise) != expected:
                way, expected = way.otherwise, stored.shape
            if stored.shape != expected:
                raise ModelError(f"{stored.name} has shape {stored.shape}, expected {expected}")
            joined = way.joined_shape
            if joined is None:
                tensor = stored.expert(expert)
            else:
                tensor = rows(expert * joined[0], (expert + 1) * joined[0], expected[0])(stored)
        tensor = tensor if way.transform is None else way.transform(tensor)
        if part.padded_shape is None or tensor.shape != part.shape:  # a check of shapes reports another one
            return tensor
        return tensor if part.padded_shape == part.shape else Padded(tensor, part.padded_shape)


def bytes_in_memory(
    tensors: LeafTensors, layout: WeightsLayout, precision: Precision, names: Collection[str] | None = None
) -> int:
    """The bytes of what `load_weights` would make; only the files' headers are read. Raises ModelError.

    Args:
        names: of leaves, which alone are counted.
    """
    vector_bytes, total = jnp.dtype(layout.vector_dtype(precision)).itemsize, 0
    for leaf in tensors.leaves:
        if names is not None and leaf.name not in names:
            continue
        layers = tensors.of(leaf)
        if leaf.kind is LeafKind.VECTOR:
            total += vector_bytes * sum(math.prod(tensor.shape) for joined in layers for tensor in joined)
        else:
            of_leaf = _precision(leaf, layout, precision)
            total += layout.num_bytes(leaf, layers, of_leaf)
    return total


def load_weights(tensors: LeafTensors, layout: WeightsLayout, precision: Precision, progress: Progress) -> Weights:
    """Reads all weights, of the shapes that the leaves declare; raises ModelError.

    `progress` counts bytes of the file; it is called by one thread at a time.
    """
    found = [(leaf, tensors.of(leaf)) for leaf in tensors.leaves]
    every = [tensor for _, layers in found for joined in layers for tensor in joined]
    total, done, lock = sum(tensor.num_bytes for tensor in every), 0, Lock()

    def count(num_bytes: int) -> None:
        nonlocal done
        with lock:
            done += num_bytes
            progress("load weights", done, total)

    params: Params = {}
    dtypes = set[str]()
    for leaf, layers in found:
        of_leaf = _precision(leaf, layout, precision)
        params[leaf.name] = made = _leaf(leaf, layers, layout, of_leaf, count)
        if leaf.kind is not LeafKind.VECTOR and not leaf.is_exact and not leaf.is_of_pictures:
            dtypes |= layout.dtype_names(made)
    num_parameters = sum(math.prod(part.shape) * len(layers) for leaf, layers in found for part in leaf.parts)
    return Weights(params, num_parameters, "+".join(sorted(dtypes)))


def _precision(leaf: Leaf, layout: WeightsLayout, precision: Precision) -> Precision:
    if leaf.is_exact:
        return EXACT
    return layout.picture_precision(precision) if leaf.is_of_pictures else precision


def _leaf(leaf: Leaf, layers: LayerTensors, layout: WeightsLayout, precision: Precision, count: Count) -> Matrix:
    match leaf.kind:
        case LeafKind.VECTOR:
            return layout.vector(leaf, layers, precision, count)
        case LeafKind.EMBEDDING:
            return layout.embedding(leaf, layers[0][0], precision, count)
        case LeafKind.MATRIX | LeafKind.GATED:
            return layout.matrix(leaf, layers, precision, count)
