"""The weights layout of the native backend: packed matrices, in the format of the file where a kernel reads it."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from engine.backends.native.library import multiplies_bytes_faster
from engine.backends.native.packer import pack_encoded, pack_rows, touch_tiles
from engine.interface.errors import ModelError
from engine.weights.concurrently import Job, num_threads, run_all
from engine.weights.encodings import EncodedRows, Encoding
from engine.weights.host_memory import large_array
from engine.weights.layout import EXACT, Count, LayerTensors, Precision, stacked_arrays
from engine.weights.leaf import Leaf, LeafKind
from engine.weights.packing import TILE, Format, PackedMatrix, PackingError, Placement, pack_quantised, quantise
from engine.weights.tensors import ModelTensor

_JOB_BYTES = 2 << 20  # of a tensor: what one job reads and packs, still in the processor's cache

_NAMES = {
    Format.INT8_MIN: "int8", Format.INT4_MIN: "int4", Format.INT8_ZERO: "int8", Format.INT4_ZERO: "int4",
}  # fmt: skip


class PackedLayout:
    """A `WeightsLayout` of packed matrices; of a gated product, the tiles of gates and ups alternate."""

    can_quantise = True

    def num_bytes(self, leaf: Leaf, layers: LayerTensors, precision: Precision) -> int:
        return _placement(leaf, layers, precision).num_bytes

    def vector_dtype(self, precision: Precision) -> str:
        return "float32"

    def picture_precision(self, precision: Precision) -> Precision:
        # Their products are of so many rows that arithmetic bounds them, which integers of few bits would not spare.
        return EXACT if precision.dtype == "float32" else Precision("bfloat16", None)

    def pair_dtype(self, precision: Precision, layers: LayerTensors = ()) -> str:
        # A batch of many adapters reads as much of them as of packed weights, and waits for the memory.
        if precision.dtype == "float32":
            return "float32"
        tensors = [tensor for layer in layers for tensor in layer]
        are_integers = bool(tensors) and all(packed_format(tensor, precision).is_integer for tensor in tensors)
        # Beside integers of few bits rows are rounded to bytes anyway.
        return "uint8" if are_integers and precision.dtype != "bfloat16" else "bfloat16"

    def arranged_pair(self, down: np.ndarray, up: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
        """Tiles of 16 outputs, as those of packed matrices: src/ffi/step_adapters.h has their shapes."""
        tiles = _tiles_of_bytes if dtype == "uint8" else partial(_tiles, dtype=jnp.dtype(dtype))
        return tiles(down), tiles(up.swapaxes(1, 2))

    def vector(self, leaf: Leaf, layers: LayerTensors, precision: Precision, count: Count) -> jax.Array:
        return stacked_arrays(layers, self.vector_dtype(precision), count)

    def matrix(self, leaf: Leaf, layers: LayerTensors, precision: Precision, count: Count) -> PackedMatrix:
        placement = _placement(leaf, layers, precision)
        # Written in place, so that no second copy of it is ever held.
        blocks = large_array((placement.num_bytes,), np.uint8)
        touch_tiles(blocks, placement, is_gated=leaf.kind is LeafKind.GATED, most_threads=num_threads())
        jobs = [
            job
            for index, tensors in enumerate(layers)
            for part, (tensor, place) in enumerate(zip(tensors, placement.places[index], strict=True))
            for job in _jobs(tensor, place.format, placement.part(blocks, index, part), count)
        ]
        run_all(jobs)
        return PackedMatrix(jax.device_put(blocks), placement, sum(tensor.shape[0] for tensor in layers[0]))

    def embedding(self, leaf: Leaf, tensor: ModelTensor, precision: Precision, count: Count) -> PackedMatrix:
        return self.matrix(leaf, [[tensor]], precision, count)

    def dtype_names(self, matrix: PackedMatrix) -> frozenset[str]:
        def name(kind: Format) -> str:
            stored = _NAMES.get(kind, kind.name.lower())
            return f"{stored} as bfloat16" if matrix.placement.as_bfloat16 and kind.is_integer else stored

        return frozenset(map(name, matrix.placement.formats))


def _tiles(matrices: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """[num_layers, tiles, inputs / lane, 16, lane] of [num_layers, outputs, inputs]; a lane has inputs of 4 bytes."""
    num_layers, num_outputs, num_inputs = matrices.shape
    lane = 4 // dtype.itemsize
    tiles = matrices.astype(dtype).reshape(num_layers, num_outputs // TILE, TILE, num_inputs // lane, lane)
    return tiles.swapaxes(2, 3)


def _tiles_of_bytes(matrices: np.ndarray) -> np.ndarray:
    """The same of bytes, scale * (byte - 128), behind the float32 scales of each tile's outputs."""
    scales = np.abs(matrices).max(axis=2).astype(np.float32) / 127
    numbers = matrices / np.where(scales == 0, 1, scales)[..., None]
    tiles = _tiles(np.rint(numbers) + 128, np.dtype(np.uint8))
    heads = np.ascontiguousarray(scales).view(np.uint8).reshape(*tiles.shape[:2], 1, *tiles.shape[3:])
    return np.concatenate([heads, tiles], axis=2)


def packed_format(tensor: ModelTensor, precision: Precision, *, may_be_int8: bool = False) -> Format:
    """The format in which a tensor is packed; `may_be_int8` is that of its leaf."""
    if precision.dtype == "float32":
        return Format.FLOAT32
    # What a transform has made of integers of a file is floats, which only these formats are made of.
    if tensor.format in (Format.INT8, Format.INT4_MIN) or (tensor.format.is_integer and tensor.encoded() is not None):
        return tensor.format
    if precision.dtype == "bfloat16":
        return Format.BFLOAT16
    if precision.quantize is None:
        if may_be_int8 and multiplies_bytes_faster():
            return Format.INT8
        return Format.BFLOAT16 if tensor.format.is_integer else tensor.format
    return {"int8": Format.INT8, "int4": Format.INT4_MIN}[precision.quantize]


def _placement(leaf: Leaf, layers: LayerTensors, precision: Precision) -> Placement:
    formats = [
        [packed_format(tensor, precision, may_be_int8=leaf.may_be_int8) for tensor in tensors] for tensors in layers
    ]
    tiles = [-(-tensor.shape[0] // TILE) for tensor in layers[0]]
    return Placement.of(
        formats, tiles, layers[0][0].shape[1],
        is_gated=leaf.kind is LeafKind.GATED, as_bfloat16=precision.dtype == "bfloat16",
    )  # fmt: skip


def _jobs(tensor: ModelTensor, kind: Format, tiles: np.ndarray, count: Count) -> Iterator[Job]:
    """The jobs that fill uint8[tiles, tile bytes] with a tensor, in pieces that several threads may do at once."""
    encoded = tensor.encoded()
    if encoded is not None and _holds(kind, encoded.encoding):
        for start, stop, num_bytes in _pieces(tensor):
            yield partial(_fill_encoded, tensor, encoded, kind, tiles, (start, stop), num_bytes, count)
    else:
        yield partial(_fill_whole, tensor, kind, tiles, count)


def _holds(kind: Format, encoding: Encoding) -> bool:
    """Whether the packer makes the format of an encoding."""
    return kind is encoding.format or (not kind.is_integer and not encoding.format.is_integer)


def _pieces(tensor: ModelTensor) -> Iterator[tuple[int, int, int]]:
    """Ranges of outputs, in whole tiles, each with the bytes of the file that hold it."""
    num_outputs, total = tensor.shape[0], tensor.num_bytes
    step = max(1, _JOB_BYTES * num_outputs // max(1, total) // TILE) * TILE
    for start in range(0, num_outputs, step):
        stop = min(start + step, num_outputs)
        yield start, stop, total * stop // num_outputs - total * start // num_outputs


def _fill_encoded(
    tensor: ModelTensor, encoded: EncodedRows, kind: Format, tiles: np.ndarray, outputs: tuple[int, int],
    num_bytes: int, count: Count,
) -> None:  # fmt: skip
    start, stop = outputs
    try:
        pack_encoded(encoded, kind, tiles[start // TILE :], start, stop)
    except PackingError as error:
        raise ModelError(f"{tensor.name} cannot be packed: {error}") from error
    count(num_bytes)


def _fill_whole(tensor: ModelTensor, kind: Format, tiles: np.ndarray, count: Count) -> None:
    matrix = tensor.float32()
    try:
        if kind.is_integer:
            tiles[:] = pack_quantised(quantise(matrix, 4 if kind.is_nibbles else 8)).reshape(tiles.shape)
        else:
            rows = np.ascontiguousarray(matrix).view(np.uint8)
            pack_rows(Encoding.F32, rows, kind, tiles, num_outputs=matrix.shape[0], num_inputs=matrix.shape[1])
    except PackingError as error:
        raise ModelError(f"{tensor.name} cannot be packed: {error}") from error
    count(tensor.num_bytes)
