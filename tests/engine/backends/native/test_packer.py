"""Every form in which model files hold weights, packed by the C++ packer, against the gguf package's dequantisation."""

import ctypes
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from engine.backends.native import packer
from engine.backends.native.library import shared_library
from engine.backends.native.packer import pack_encoded, pack_rows, touch_tiles
from engine.weights.encodings import EncodedRows, Encoding
from engine.weights.packing import GROUP, TILE, Format, PackingError, Placement, to_nibbles
from tests.gguf_tensors import random_rows
from tests.packed_blocks import pack, unpack

INPUTS = 768
FLOATS = (Encoding.F32, Encoding.F16, Encoding.BF16)
ZEROS = (Encoding.Q4_ZERO, Encoding.Q8_ZERO)  # of no file
INTEGERS = [encoding for encoding in Encoding if encoding not in (*FLOATS, *ZEROS)]

encodings = pytest.mark.parametrize("encoding", INTEGERS, ids=lambda encoding: encoding.name)


def bytes_of(rows):
    """uint8[outputs, bytes]."""
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)


@encodings
@pytest.mark.parametrize("size", [1.0, 1e-2])
@pytest.mark.parametrize("outputs", [40, 1])
def test_weights_are_exactly_those_of_the_file(variant, encoding, size, outputs):
    kind = Kind(encoding)
    rows = random_rows(np.random.default_rng(outputs), kind, outputs, INPUTS, size)
    expected = dequantize(rows, kind)
    assert 0.4 * size < expected.std() < 2.5 * size
    tiles = pack(encoding, rows, encoding.format, INPUTS)
    back = unpack(tiles, encoding.format)
    # The numbers and their scales are the same; where there are minima, sums are rounded in the same way as well.
    np.testing.assert_array_equal(back[:outputs], expected)
    assert not back[outputs:].any()


@pytest.mark.parametrize("encoding", ZEROS, ids=lambda encoding: encoding.name)
def test_groups_with_zero_points_are_packed_exactly(variant, encoding):
    random, shape = np.random.default_rng(3), (20, INPUTS // GROUP)
    bits = 4 if encoding is Encoding.Q4_ZERO else 8
    scales = random.uniform(1e-3, 2e-3, shape).astype(np.float16)
    zeros = random.integers(0, (1 << bits) + 1, shape)  # GPTQ counts them from 1 on
    numbers = random.integers(0, 1 << bits, (*shape, GROUP), np.uint8)
    head = np.stack([scales, -zeros.astype(np.float16)], axis=-1).view(np.uint8)
    backend = to_nibbles(numbers) if bits == 4 else numbers
    rows = np.concatenate([head, backend], axis=-1).reshape(len(scales), -1)
    back = unpack(pack(encoding, rows, encoding.format, INPUTS), encoding.format)[: len(scales)]
    expected = (numbers.astype(np.float32) - zeros[..., None]) * scales.astype(np.float32)[..., None]
    np.testing.assert_array_equal(back, expected.reshape(len(scales), -1))


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [
        (Encoding.F32, Format.FLOAT32),
        (Encoding.F32, Format.BFLOAT16),
        (Encoding.F16, Format.FLOAT32),
        (Encoding.F16, Format.FLOAT16),
        (Encoding.F16, Format.BFLOAT16),
        (Encoding.BF16, Format.FLOAT32),
        (Encoding.BF16, Format.BFLOAT16),
    ],
)
def test_floats_are_rounded_where_the_format_is_smaller(variant, encoding, kind):
    types = {Encoding.F32: np.float32, Encoding.F16: np.float16, Encoding.BF16: jnp.bfloat16}
    matrix = np.random.default_rng(0).standard_normal((50, 96)).astype(types[encoding])
    matrix[3, 5], matrix[4, 6], matrix[5, 7] = np.nan, np.inf, -0.0
    back = unpack(pack(encoding, bytes_of(matrix), kind, 96), kind)
    of_format = {Format.FLOAT32: np.float32, Format.FLOAT16: np.float16, Format.BFLOAT16: jnp.bfloat16}[kind]
    np.testing.assert_array_equal(back[:50], matrix.astype(of_format).astype(np.float32))
    assert not back[50:].any()


@encodings
def test_outputs_in_another_order_and_in_pieces(variant, encoding):
    outputs = 3 * TILE
    random = np.random.default_rng(1)
    rows = bytes_of(random_rows(random, Kind(encoding), outputs, INPUTS))
    order = random.permutation(outputs).astype(np.int32)
    whole = pack(encoding, rows[order], encoding.format, INPUTS)
    matrix = EncodedRows(encoding, outputs, INPUTS, read=lambda start, stop: rows[start:stop]).taken(order)
    tiles = np.zeros_like(whole)
    pack_encoded(matrix, encoding.format, tiles[1:], TILE, outputs)
    pack_encoded(matrix, encoding.format, tiles, 0, TILE)
    np.testing.assert_array_equal(tiles, whole)


def test_an_order_of_an_order():
    rows = np.arange(8, dtype=np.uint8)[:, None]
    matrix = EncodedRows(Encoding.Q8_0, 8, 32, read=lambda start, stop: rows[start:stop])
    first, second = np.array([1, 0, 3, 2, 5, 4, 7, 6]), np.array([7, 6, 5, 4, 3, 2, 1, 0])
    taken = matrix.taken(first).taken(second)
    read, order = taken.rows(2, 5)
    assert read[order, 0].tolist() == first[second][2:5].tolist()


@pytest.mark.parametrize(
    ("encoding", "at"),
    [(Encoding.Q8_0, 0), (Encoding.Q4_1, 2), (Encoding.Q5_1, 2), (Encoding.Q4_K, 2), (Encoding.Q6_K, 208)],
)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scales_that_are_no_numbers_are_refused(variant, encoding, at, bad):
    rows = bytes_of(random_rows(np.random.default_rng(0), Kind(encoding), 20, 256))
    rows[17, at : at + 2] = np.array([bad], np.float16).view(np.uint8)
    with pytest.raises(PackingError, match="not finite, or too large for float16"):
        pack(encoding, rows, encoding.format, 256)


def test_powers_of_two_of_mxfp4_stay_exponents(variant):
    rows = np.full((250, 17), 0x9F, np.uint8)  # -6 and -1/2
    rows[:, 0] = np.arange(250)
    back = unpack(pack(Encoding.MXFP4, rows, Format.MXFP4, GROUP), Format.MXFP4)[:250]
    np.testing.assert_array_equal(back[1:], dequantize(rows, Kind.MXFP4)[1:])
    np.testing.assert_array_equal(back[:, :: GROUP // 2], np.ldexp([[-6.0, -0.5]], rows[:, :1].astype(int) - 127))
    rows[17, 0] = 255  # no number
    with pytest.raises(PackingError, match="scales that are not finite"):
        pack(Encoding.MXFP4, rows, Format.MXFP4, GROUP)


def test_the_sizes_of_tiles_are_those_of_the_kernels(variant):
    tile_bytes = shared_library().eagre_tile_bytes
    tile_bytes.restype = ctypes.c_int64
    sizes = {kind: tile_bytes(int(kind), ctypes.c_int64(INPUTS // GROUP)) for kind in Format}
    assert sizes == {kind: kind.tile_bytes(INPUTS) for kind in Format}
    assert tile_bytes(len(Format), ctypes.c_int64(8)) == -1


@pytest.mark.parametrize(
    ("encoding", "kind", "inputs"),
    [
        (Encoding.Q4_0, Format.INT8, 256),
        (Encoding.Q4_0, Format.FLOAT32, 256),
        (Encoding.F32, Format.INT8, 256),
        (Encoding.F32, Format.FLOAT16, 256),
        (Encoding.Q4_K, Format.Q4_K, 96),
        (5, Format.INT8, 256),
    ],
)
def test_what_the_packer_cannot_make_is_refused(variant, encoding, kind, inputs):
    tiles = np.zeros((1, kind.tile_bytes(256)), np.uint8)
    with pytest.raises(PackingError, match="its format cannot hold it"):
        pack_rows(encoding, np.zeros((1, 4096), np.uint8), kind, tiles, num_outputs=1, num_inputs=inputs)


@pytest.mark.parametrize(("encoding", "num_bytes"), [(Encoding.Q4_K, 143), (Encoding.Q8_0, 271), (Encoding.BF16, 511)])
def test_rows_that_are_cut_short_are_refused(variant, encoding, num_bytes):
    with pytest.raises(PackingError, match="its rows are shorter than its shape says"):
        pack(encoding, np.zeros((16, num_bytes), np.uint8), encoding.format, 256)


@pytest.mark.parametrize("order", [None, np.array([0, 3], np.int32)], ids=["in order", "in another order"])
def test_rows_that_are_missing_are_refused(order):
    tiles = np.zeros((1, Format.INT8.tile_bytes(32)), np.uint8)
    with pytest.raises(PackingError, match="it has fewer rows than its shape says"):
        pack_rows(
            Encoding.Q8_0, np.zeros((3, 34), np.uint8), Format.INT8, tiles,
            num_outputs=4 if order is None else 2, num_inputs=32, order=order,
        )  # fmt: skip


@pytest.mark.parametrize("is_gated", [False, True])
def test_the_memory_of_each_part_of_each_matrix_is_asked_for(monkeypatch, is_gated):
    """Two matrices of parts of 6 and 6 tiles, or, not gated, of 6 and 4; the second one in other formats."""
    tiles = [6, 6 if is_gated else 4]
    formats = [[Format.INT8, Format.INT8], [Format.INT4, Format.INT8]]
    placement = Placement.of(formats, tiles, 64, is_gated=is_gated)
    blocks, asked = np.zeros(placement.num_bytes, np.uint8), []

    def touch(array, num_bytes, given, count, most_threads):
        numbers = (ctypes.c_int64 * (5 * count.value)).from_address(given.value)
        asked.append((array.value, num_bytes.value, np.array(numbers).reshape(-1, 5).tolist(), most_threads.value))

    monkeypatch.setattr(packer, "num_nodes", lambda: 2)
    monkeypatch.setattr(packer, "shared_library", lambda: SimpleNamespace(eagre_touch=touch))
    touch_tiles(blocks, placement, is_gated=is_gated, most_threads=3)
    results = 6 if is_gated else 10
    expected = [
        [place.offset, place.stride, count, first, results]
        for parts in placement.places
        for place, count, first in zip(parts, tiles, (0, 6), strict=True)
    ]
    assert asked == [(blocks.ctypes.data, blocks.nbytes, expected, 3)]
