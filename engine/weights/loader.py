"""From the tensors of a model file to a parameter tree.

Each kind of file states declaratively which of its tensors make a leaf; what becomes of them,
arrays for XLA or packed matrices for the native kernels, is decided here for all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from engine.border.config import EngineConfig
from engine.border.types import Progress
from engine.kernels.bodies import Backends
from engine.kernels.xla.products import Matrix
from engine.models.llama import LlamaConfig, LlamaLayers, LlamaParams
from engine.weights.host_memory import large_array
from engine.weights.packing import (
    GROUP,
    TILE,
    Format,
    PackedMatrix,
    PackingError,
    Quantised,
    alternate_tiles,
    pack_floats,
    pack_quantised,
    quantise,
    widen,
)


class WeightsError(RuntimeError):
    """The file is no model that can be served; the message says why."""


class ModelTensor(Protocol):
    """A tensor of a model file; nothing is read until it is asked for."""

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
        """How a packed matrix of it alone would hold it, without --quantize."""

    def float32(self) -> np.ndarray:
        """All of it, float32[shape]."""

    def quantised(self) -> Quantised:
        """All of it in `format`, which is one of integers."""


@dataclass(frozen=True)
class TensorNames:
    """Where a kind of model file keeps the leaves of a parameter tree.

    Of a leaf over all layers, `{}` in a name stands for the layer; several tensors are joined along
    their outputs.
    """

    attention_norm: str
    qkv: tuple[str, ...]
    attention_output: tuple[str, ...]
    mlp_norm: str
    gate_up: tuple[str, ...]
    down: tuple[str, ...]
    embedding: str  # [vocab, hidden]
    output_norm: str  # [hidden]
    output: str  # [vocab, hidden]; absent where the embedding serves

    def shapes(self, config: LlamaConfig) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of a model, row-major."""
        hidden, intermediate, kv_size = config.hidden_size, config.intermediate_size, config.kv_size
        layer = {
            self.attention_norm: (hidden,),
            **dict(zip(self.qkv, ((config.q_size, hidden), (kv_size, hidden), (kv_size, hidden)), strict=True)),
            **dict.fromkeys(self.attention_output, (hidden, config.q_size)),
            self.mlp_norm: (hidden,),
            **dict.fromkeys(self.gate_up, (intermediate, hidden)),
            **dict.fromkeys(self.down, (hidden, intermediate)),
        }
        vocab = config.vocab_size, hidden
        shapes: dict[str, tuple[int, ...]] = {self.embedding: vocab, self.output_norm: (hidden,), self.output: vocab}
        for index in range(config.num_layers):
            shapes |= {name.format(index): shape for name, shape in layer.items()}
        return shapes


@dataclass(frozen=True)
class WeightsFormat:
    """What the weights become in memory."""

    is_packed: bool  # for the native kernels; else arrays for XLA
    dtype: str  # float32, bfloat16, or auto: packed integers where the file has integers
    quantize: str | None  # int8 or int4: what a packed matrix makes of floats

    @classmethod
    def of_engine(cls, config: EngineConfig, backends: Backends) -> WeightsFormat:
        return cls(backends.matmul == "native", config.dtype, config.quantize)

    @property
    def array_dtype(self) -> str:
        """Of what is not packed."""
        return "float32" if self.is_packed or self.dtype == "auto" else self.dtype

    @property
    def of_floats(self) -> Format:
        """What a packed matrix, not of floats by `dtype`, makes of a tensor of floats."""
        return {None: Format.BFLOAT16, "int8": Format.INT8, "int4": Format.INT4_MIN}[self.quantize]

    def of(self, tensors: Sequence[ModelTensor]) -> Format:
        """The one format in which tensors are packed that make one leaf."""
        if self.dtype == "float32":
            return Format.FLOAT32
        if self.dtype == "bfloat16":
            return Format.BFLOAT16
        formats = {tensor.format if tensor.format.is_integer else self.of_floats for tensor in tensors}
        if len(formats) == 1:
            return formats.pop()
        if any(not kind.is_integer for kind in formats):
            return Format.BFLOAT16
        return Format.INT4_MIN if all(kind.is_nibbles for kind in formats) else Format.INT8_MIN


def load_params(
    names: TensorNames,
    config: LlamaConfig,
    find: Callable[[str], ModelTensor | None],
    wanted: WeightsFormat,
    progress: Progress,
) -> LlamaParams:
    """Reads all weights.

    Args:
        find: the tensor of a name, of the shape that `names.shapes` says, or None where the file has none.
        progress: counts bytes of the file.

    Raises:
        WeightsError: a tensor is missing or cannot be packed.
    """
    loader = _Loader(names, config, find, wanted, progress)
    has_output = find(names.output) is not None
    return LlamaParams(
        embedding=loader.single_matrix(names.embedding),
        layers=LlamaLayers(
            attention_norm=loader.vectors(names.attention_norm),
            qkv=loader.matrices(names.qkv),
            attention_output=loader.matrices(names.attention_output),
            mlp_norm=loader.vectors(names.mlp_norm),
            gate_up=loader.matrices(names.gate_up, is_gated=True),
            down=loader.matrices(names.down),
        ),
        output_norm=loader.vector(names.output_norm),
        output=loader.single_matrix(names.output) if has_output else None,
    )


def num_parameters(params: LlamaParams) -> int:
    """Weights of a tree, in whatever form."""
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, PackedMatrix))
    return sum(leaf.num_weights if isinstance(leaf, PackedMatrix) else leaf.size for leaf in leaves)


def dtype_name(params: LlamaParams) -> str:
    """The types of a tree's matrices, such as "float32" or "int4+int8"."""
    matrices = (params.embedding, params.layers.qkv, params.layers.attention_output, params.layers.gate_up)
    names = set()
    for matrix in (*matrices, params.layers.down, params.output):
        if isinstance(matrix, PackedMatrix):
            names.add(matrix.format.name.lower().removesuffix("_min"))
        elif matrix is not None:
            names.add(matrix.dtype.name)
    return "+".join(sorted(names))


class _Loader:
    def __init__(
        self, names: TensorNames, config: LlamaConfig, find: Callable[[str], ModelTensor | None],
        wanted: WeightsFormat, progress: Progress,
    ) -> None:  # fmt: skip
        self._num_layers = config.num_layers
        self._find = find
        self._wanted = wanted
        self._progress = progress
        self._done = 0
        present = (find(name) for name in names.shapes(config))
        self._total = sum(tensor.num_bytes for tensor in present if tensor is not None)

    def vector(self, name: str) -> jax.Array:
        return jnp.asarray(self._read(self._tensor(name)), self._wanted.array_dtype)

    def single_matrix(self, name: str) -> Matrix:
        """[outputs, inputs] as an array."""
        tensor = self._tensor(name)
        if not self._wanted.is_packed:
            return jnp.asarray(self._read(tensor), self._wanted.array_dtype)
        return self._packed_stack([[tensor]], is_gated=False)

    def vectors(self, name: str) -> jax.Array:
        """[num_layers, size]."""
        return self._array_stack(self._layers((name,)))

    def matrices(self, names: tuple[str, ...], *, is_gated: bool = False) -> Matrix:
        """[num_layers, inputs, outputs] as an array; of a gated product, packed, the tiles alternate."""
        layers = self._layers(names)
        return self._packed_stack(layers, is_gated) if self._wanted.is_packed else self._array_stack(layers)

    def _layers(self, names: tuple[str, ...]) -> list[list[ModelTensor]]:
        return [[self._tensor(name.format(layer)) for name in names] for layer in range(self._num_layers)]

    def _array_stack(self, layers: list[list[ModelTensor]]) -> jax.Array:
        """Transposed to [inputs, outputs]; written in place, so that no second copy of it is ever held."""
        joined = (sum(tensor.shape[0] for tensor in layers[0]), *layers[0][0].shape[1:])
        stack = large_array((len(layers), *reversed(joined)), jnp.dtype(self._wanted.array_dtype))
        for target, tensors in zip(stack, layers, strict=True):
            start = 0
            for tensor in tensors:
                end = start + tensor.shape[0]
                target[..., start:end] = self._read(tensor).T
                start = end
        array: jax.Array = jax.device_put(stack)
        return array

    def _packed_stack(self, layers: list[list[ModelTensor]], is_gated: bool) -> PackedMatrix:
        kind = self._wanted.of([tensor for tensors in layers for tensor in tensors])
        # Written in place, so that no second copy of it is ever held.
        num_outputs, num_inputs = sum(tensor.shape[0] for tensor in layers[0]), layers[0][0].shape[1]
        stack = large_array((len(layers), -(-num_outputs // TILE), num_inputs // GROUP, kind.block_bytes), np.uint8)
        for target, tensors in zip(stack, layers, strict=True):
            parts = [self._packed(tensor, kind) for tensor in tensors]
            target[:] = alternate_tiles(*parts) if is_gated else np.concatenate(parts)
        return PackedMatrix(jax.device_put(stack), kind, num_outputs)

    def _packed(self, tensor: ModelTensor, kind: Format) -> np.ndarray:
        """uint8[tiles, groups, block bytes]."""
        if not kind.is_integer:
            return pack_floats(self._read(tensor), kind)
        try:
            if tensor.format.is_integer:
                self._count(tensor)
                quantised = tensor.quantised()
            else:
                quantised = quantise(self._read(tensor), 4 if self._wanted.of_floats.is_nibbles else 8)
            return pack_quantised(quantised if quantised.format is kind else widen(quantised, kind))
        except PackingError as error:
            raise WeightsError(f"{tensor.name} cannot be packed: {error}") from error

    def _read(self, tensor: ModelTensor) -> np.ndarray:
        self._count(tensor)
        return tensor.float32()

    def _count(self, tensor: ModelTensor) -> None:
        self._done += tensor.num_bytes
        self._progress("load weights", self._done, self._total)

    def _tensor(self, name: str) -> ModelTensor:
        tensor = self._find(name)
        if tensor is None:
            raise WeightsError(f"the file has no tensor {name!r}")
        return tensor
