"""The packer in C++: from rows of a model file to the tiles of a packed matrix, without the interpreter's lock."""

import ctypes
from functools import cache

import numpy as np

from engine.backends.native.library import load, num_nodes, shared_library
from engine.weights.encodings import EncodedRows, Encoding
from engine.weights.packing import GROUP, Format, PackingError, Placement

_MESSAGES = {
    1: "its format cannot hold it",
    2: "it has scales that are not finite, or too large for float16",
    3: "its rows are shorter than its shape says",
}

_MOST_TOUCHING = 8  # threads of a memory node, which share its bandwidth

# Of these a number in a file is the place of several weights in a grid, which the package of the format has.
_WITH_GRIDS = frozenset(
    (
        Encoding.IQ2_XXS, Encoding.IQ2_XS, Encoding.IQ2_S, Encoding.IQ3_XXS, Encoding.IQ3_S, Encoding.IQ1_S,
        Encoding.IQ1_M,
    )
)  # fmt: skip


@cache
def _give_grid(variant: str, encoding: Encoding) -> None:
    """Gives a variant of the kernels the grid of an encoding."""
    from gguf import quants  # such files are rare, and the import takes time

    kind = getattr(quants, encoding.name)
    kind.init_grid()
    grid = np.ascontiguousarray(kind.grid, np.int8)
    address, size = ctypes.c_void_p(grid.ctypes.data), ctypes.c_int64(grid.size)
    if not shared_library().eagre_take_grid(int(encoding), address, size):
        raise PackingError(f"the gguf package has another grid for {encoding.name}")


def pack_rows(
    encoding: Encoding, rows: np.ndarray, kind: Format, tiles: np.ndarray, *,
    num_outputs: int, num_inputs: int, order: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Fills tiles, uint8[tiles, tile bytes], from rows, uint8[rows, bytes of a row]; missing outputs become zeros.

    Output i is row order[i] where `order`, an int32 array, is given. Raises PackingError where a scale is not finite or
    beyond float16, the format cannot hold the encoding, or rows or bytes are missing.
    """
    if (num_outputs if order is None else int(order.max(initial=-1)) + 1) > len(rows):
        raise PackingError("it has fewer rows than its shape says")
    if encoding in _WITH_GRIDS:
        _give_grid(load(), encoding)
    problem = shared_library().eagre_pack(
        int(encoding), int(kind), rows.ctypes.data, rows.strides[0],
        None if order is None else order.ctypes.data, num_outputs, num_inputs // GROUP,
        tiles.ctypes.data, tiles.strides[0],
    )  # fmt: skip
    if problem:
        raise PackingError(_MESSAGES[problem])


def touch_tiles(blocks: np.ndarray, placement: Placement, *, is_gated: bool, most_threads: int) -> None:
    """Has the system take the memory of a new array from the memory nodes whose threads multiply its tiles.

    Does nothing on a machine with one node. On each, so many threads at most touch the memory.
    """
    if num_nodes() == 1:
        return
    num_results = sum(placement.tiles) // (2 if is_gated else 1)
    firsts = np.cumsum([0, *placement.tiles])
    tiles = np.array(
        [
            (place.offset, place.stride, count, first, num_results)
            for parts in placement.places
            for place, count, first in zip(parts, placement.tiles, firsts, strict=False)
        ],
        np.int64,
    )
    per_node = max(1, min(most_threads, _MOST_TOUCHING))
    shared_library().eagre_touch(
        ctypes.c_void_p(blocks.ctypes.data), ctypes.c_int64(blocks.nbytes),
        ctypes.c_void_p(tiles.ctypes.data), ctypes.c_int64(len(tiles)), ctypes.c_int32(per_node),
    )  # fmt: skip


def pack_encoded(matrix: EncodedRows, kind: Format, tiles: np.ndarray, start: int, stop: int) -> None:
    """Fills tiles with the outputs from start to stop; raises as `pack_rows`."""
    rows, order = matrix.rows(start, stop)
    pack_rows(matrix.encoding, rows, kind, tiles, num_outputs=stop - start, num_inputs=matrix.num_inputs, order=order)
    matrix.forget(rows)
