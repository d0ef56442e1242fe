"""The packer in C++: from rows of a model file to the tiles of a packed matrix, without the interpreter's lock."""

import ctypes
from functools import cache

import numpy as np

from engine.backends.native.library import load, shared_library
from engine.weights.encodings import EncodedRows, Encoding
from engine.weights.packing import GROUP, Format, PackingError

_MESSAGES = {
    1: "its format cannot hold it",
    2: "it has scales that are not finite, or too large for float16",
    3: "its rows are shorter than its shape says",
}


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


def pack_encoded(matrix: EncodedRows, kind: Format, tiles: np.ndarray, start: int, stop: int) -> None:
    """Fills tiles with the outputs from start to stop; raises as `pack_rows`."""
    rows, order = matrix.rows(start, stop)
    pack_rows(matrix.encoding, rows, kind, tiles, num_outputs=stop - start, num_inputs=matrix.num_inputs, order=order)
    matrix.forget(rows)
