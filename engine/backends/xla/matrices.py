"""The weights layout of the XLA backend: stacks [num_layers, inputs, outputs], embeddings [vocab, hidden]."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from engine.weights.layout import EXACT, Count, LayerTensors, Matrix, Precision, stacked_arrays
from engine.weights.leaf import Leaf
from engine.weights.tensors import ModelTensor


def default_dtype() -> str:
    """The type of weights and pages where the configuration leaves it open: that which the device multiplies fast."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


class ArrayLayout:
    """A `WeightsLayout` of arrays, in one type for all leaves. Integers of the file become floats."""

    can_quantise = False

    def num_bytes(self, leaf: Leaf, layers: LayerTensors, precision: Precision) -> int:
        num_numbers = sum(math.prod(tensor.shape) for tensors in layers for tensor in tensors)
        return num_numbers * jnp.dtype(self.vector_dtype(precision)).itemsize

    def vector_dtype(self, precision: Precision) -> str:
        return default_dtype() if precision.dtype == "auto" else precision.dtype

    def picture_precision(self, precision: Precision) -> Precision:
        return EXACT

    def pair_dtype(self, precision: Precision, layers: LayerTensors = ()) -> str:
        return self.vector_dtype(precision)

    def arranged_pair(self, down: np.ndarray, up: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
        """[num_layers, inputs, columns] and [num_layers, rank, outputs]."""
        kind = jnp.dtype(dtype)
        return down.swapaxes(1, 2).astype(kind), up.astype(kind)

    def vector(self, leaf: Leaf, layers: LayerTensors, precision: Precision, count: Count) -> jax.Array:
        """[num_layers, size]."""
        return stacked_arrays(layers, self.vector_dtype(precision), count)

    def matrix(self, leaf: Leaf, layers: LayerTensors, precision: Precision, count: Count) -> Matrix:
        """[num_layers, inputs, outputs]; the gates of a gated product, then the ups."""
        return stacked_arrays(layers, self.vector_dtype(precision), count)

    def embedding(self, leaf: Leaf, tensor: ModelTensor, precision: Precision, count: Count) -> Matrix:
        """[vocab, hidden]."""
        matrix = jnp.asarray(tensor.float32(), self.vector_dtype(precision))
        count(tensor.num_bytes)
        return matrix

    def dtype_names(self, matrix: Matrix) -> frozenset[str]:
        return frozenset({str(matrix.dtype.name)})
