"""The packer in C++: from rows of a model file to the tiles of a packed matrix, without the interpreter's lock."""

import numpy as np

from engine.backends.native.library import shared_library
from engine.weights.encodings import EncodedRows, Encoding
from engine.weights.packing import GROUP, Format, PackingError

_MESSAGES = {
    1: "its format cannot hold it",
    2: "it has scales that are not finite, or too large for float16",
    3: "its rows are shorter than its shape says",
}


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
