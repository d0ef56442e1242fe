"""Weights that are split over the devices of a mesh.

A split leaf is joined on each device from that device's share of each part, so that queries, keys and values of the
same heads lie together, and gates with their ups. Every tensor is read once, and each share goes straight to its
device. Of a mesh over several processes each process makes the shares of its own devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from engine.backends.xla.matrices import ArrayLayout
from engine.parallel.mesh import AXIS, on_every_device
from engine.weights.concurrently import run_all
from engine.weights.host_memory import large_array
from engine.weights.layout import Count, LayerTensors, Precision
from engine.weights.leaf import Leaf, Split
from engine.weights.tensors import ModelTensor

_Share = np.ndarray | None  # of one device, on the host; None: the device belongs to another process


@partial(jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["split", "num_outputs"])
@dataclass(frozen=True)
class SplitMatrix:
    """A matrix or an embedding; within a program of one device, its share of it."""

    array: jax.Array  # as `ArrayLayout` lays it out
    split: Split
    num_outputs: int  # of all devices together, without padding


class SplitLayout(ArrayLayout):
    """A `WeightsLayout` of arrays that are split over a mesh as their leaves declare."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._num_devices = mesh.size
        self._is_local = [device.process_index == jax.process_index() for device in mesh.devices.flat]

    def vector(self, leaf: Leaf, layers: LayerTensors, precision: Precision, count: Count) -> jax.Array:
        """[num_layers, size], of a split leaf [num_layers, size / devices] on each device."""
        return self._placed(leaf, layers, self.vector_dtype(precision), count)

    def matrix(self, leaf: Leaf, layers: LayerTensors, precision: Precision, count: Count) -> SplitMatrix:
        """[num_layers, inputs, outputs], split over the axis that the leaf names."""
        array = self._placed(leaf, layers, self.vector_dtype(precision), count)
        return SplitMatrix(array, leaf.split, sum(tensor.shape[0] for tensor in layers[0]))

    def embedding(self, leaf: Leaf, tensor: ModelTensor, precision: Precision, count: Count) -> SplitMatrix:
        """[vocab, hidden], split over the vocabulary, which is padded with rows of zeros to whole shares."""
        vocab_size, hidden = tensor.shape
        share = -(-vocab_size // self._num_devices)
        rows = tensor.float32()
        shares: list[_Share] = []
        for index, is_local in enumerate(self._is_local):
            own = rows[index * share : (index + 1) * share]
            part = large_array((share, hidden), jnp.dtype(self.vector_dtype(precision))) if is_local else None
            if part is not None:
                part[: len(own)] = own
            shares.append(part)
        count(tensor.num_bytes)
        return SplitMatrix(self._assembled(shares, 0), leaf.split, vocab_size)

    def dtype_names(self, matrix: SplitMatrix) -> frozenset[str]:
        return super().dtype_names(matrix.array)

    def _placed(self, leaf: Leaf, layers: LayerTensors, dtype: str, count: Count) -> jax.Array:
        if leaf.split is Split.REPLICATED:
            stack = self._stack(layers, [tensor.shape for tensor in layers[0]], dtype)
            run_all([partial(_fill, [stack], i, tensors, leaf.split, count) for i, tensors in enumerate(layers)])
            return on_every_device(self._mesh, stack)
        if leaf.split is Split.EXPERTS:
            return self._placed_experts(leaf, layers, dtype, count)
        axis = 1 if leaf.split is Split.INPUTS else 0
        local = [_divided(tensor.shape, axis, self._num_devices) for tensor in layers[0]]
        shares = [self._stack(layers, local, dtype) if is_local else None for is_local in self._is_local]
        run_all([partial(_fill, shares, i, tensors, leaf.split, count) for i, tensors in enumerate(layers)])
        # A stack is [layers, inputs, outputs], or [layers, outputs] of vectors.
        return self._assembled(shares, 1 if leaf.split is Split.INPUTS else len(layers[0][0].shape))

    def _placed_experts(self, leaf: Leaf, layers: LayerTensors, dtype: str, count: Count) -> jax.Array:
        """Stacks of whole experts: those of a device, layer after layer, one behind the other."""
        of_device = leaf.num_experts // self._num_devices
        own: list[list[int]] = [[] for _ in range(self._num_devices)]
        for index in range(len(layers)):
            own[index % leaf.num_experts // of_device].append(index)
        shapes = [tensor.shape for tensor in layers[0]]
        shares = [
            self._stack([layers[index] for index in indices], shapes, dtype) if is_local else None
            for indices, is_local in zip(own, self._is_local, strict=True)
        ]
        run_all(
            [
                partial(_fill, [share], place, layers[index], Split.REPLICATED, count)
                for share, indices in zip(shares, own, strict=True)
                for place, index in enumerate(indices)
            ]
        )
        return self._assembled(shares, 0)

    def _stack(self, layers: LayerTensors, shapes: list[tuple[int, ...]], dtype: str) -> np.ndarray:
        joined = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        return large_array((len(layers), *reversed(joined)), jnp.dtype(dtype))

    def _assembled(self, shares: list[_Share], axis: int) -> jax.Array:
        """One array of the shares, each on its device."""
        arrays = [
            jax.device_put(share, device)
            for share, device in zip(shares, self._mesh.devices.flat, strict=True)
            if share is not None
        ]
        spec = PartitionSpec(*(AXIS if i == axis else None for i in range(arrays[0].ndim)))
        shape = tuple(size * (len(shares) if i == axis else 1) for i, size in enumerate(arrays[0].shape))
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(self._mesh, spec), arrays)


def _fill(shares: Sequence[_Share], layer: int, tensors: Sequence[ModelTensor], split: Split, count: Count) -> None:
    """Writes one layer of a leaf into the stacks of all devices."""
    if all(share is None for share in shares):
        for tensor in tensors:
            count(tensor.num_bytes)
        return
    start = 0
    for tensor in tensors:
        whole = tensor.float32()
        pieces = np.split(whole, len(shares), axis=1 if split is Split.INPUTS else 0)
        end = start + pieces[0].shape[0]
        for share, piece in zip(shares, pieces, strict=True):
            if share is not None:
                share[layer][..., start:end] = piece.T
        start = end
        count(tensor.num_bytes)


def _divided(shape: tuple[int, ...], axis: int, count: int) -> tuple[int, ...]:
    return tuple(size // count if i == axis else size for i, size in enumerate(shape))
