"""What is packed comes back from the blocks; what is rounded stays within its stated error."""

from itertools import pairwise

import numpy as np
import pytest

from engine.weights.packing import (
    GROUP,
    TILE,
    Format,
    PackingError,
    Placement,
    Quantised,
    pack_quantised,
    quantise,
    to_nibbles,
)
from tests.packed_blocks import dequantise, from_nibbles, has_minima, unpack

INTEGERS = [kind for kind in Format if kind.is_integer and not kind.is_k and kind not in (Format.MXFP4, Format.IQ4_NL)]
SMALLEST = 2.0**-24  # of float16
LARGEST = 65504.0


def random_matrix(kind, outputs, inputs, seed=0):
    """Numbers of the whole range, scales and minima of float16."""
    random = np.random.default_rng(seed)
    shape = (outputs, inputs // GROUP)
    numbers = random.integers(0, 16 if kind.is_nibbles else 256, (*shape, GROUP), np.uint8)
    scales, minima = random.standard_normal((2, *shape)).astype(np.float16).astype(np.float32)
    return Quantised(
        kind, scales, minima if has_minima(kind) else None, to_nibbles(numbers) if kind.is_nibbles else numbers
    )


@pytest.mark.parametrize("kind", INTEGERS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (48, 96), (50, 64), (1, 32), (15, 256)])
def test_integers_come_back_and_missing_outputs_are_zeros(kind, outputs, inputs):
    matrix = random_matrix(kind, outputs, inputs)
    blocks = pack_quantised(matrix)
    assert blocks.shape[:2] == (-(-outputs // TILE), inputs // GROUP)
    assert blocks[0].nbytes == kind.tile_bytes(inputs)
    back = unpack(blocks, kind)
    assert np.array_equal(back[:outputs], dequantise(matrix))
    assert not back[outputs:].any()


def test_a_scale_that_is_no_float16_is_rounded_by_one_part_in_two_thousand():
    matrix = random_matrix(Format.INT4_MIN, 16, 64)
    changed = matrix._replace(scales=matrix.scales * 1.0001, minima=matrix.minima * 0.9999)
    largest = np.abs(matrix.scales[..., None] * from_nibbles(matrix.numbers)) + np.abs(matrix.minima[..., None])
    error = np.abs(unpack(pack_quantised(changed), Format.INT4_MIN) - dequantise(changed))
    assert (error <= largest.reshape(error.shape) / 2000).all()


def test_nibbles_come_back():
    numbers = np.random.default_rng(0).integers(0, 16, (3, 2, GROUP), np.uint8)
    assert np.array_equal(from_nibbles(to_nibbles(numbers)), numbers)


def places(placement):
    """The bytes of all tiles, matrix by matrix and part by part."""
    return [
        [
            [range(start, start + place.format.tile_bytes(placement.num_inputs)) for start in starts]
            for place, count in zip(parts, placement.tiles, strict=True)
            for starts in [range(place.offset, place.offset + count * place.stride, place.stride)]
        ]
        for parts in placement.places
    ]


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("num_inputs", [256, 768])
@pytest.mark.parametrize(
    "formats",
    [
        [[Format.INT8, Format.INT8]] * 3,
        [[Format.Q4_K, Format.Q6_K], [Format.Q4_K, Format.Q4_K], [Format.Q6_K, Format.BFLOAT16]],
    ],
    ids=["one format", "several"],
)
def test_tiles_lie_apart_in_their_order(formats, num_inputs, is_gated):
    placement = Placement.of(formats, [4, 4], num_inputs, is_gated=is_gated)
    assert [[place.format for place in parts] for parts in placement.places] == formats
    tiles = places(placement)
    assert all(len(part) == 4 and part[0].start % 64 == 0 for matrix in tiles for part in matrix)
    if is_gated:
        in_order = [tile for first, second in tiles for pair in zip(first, second, strict=True) for tile in pair]
    else:
        in_order = [tile for matrix in tiles for part in matrix for tile in part]
    assert all(before.stop <= after.start for before, after in pairwise(in_order))
    assert in_order[0].start == 0
    assert placement.num_bytes == sum(map(len, in_order))


def test_tiles_of_a_gated_product_that_are_no_whole_lines_lie_one_behind_the_other():
    placement = Placement.of([[Format.INT8, Format.INT4]], [3, 3], 32, is_gated=True)
    gates, ups = places(placement)[0]
    assert [tile.start for tile in gates] == [0, 544, 1088]
    assert [tile.start for tile in ups] == [1664, 1952, 2240]
    assert placement.num_bytes == 2560
    blocks = np.arange(placement.num_bytes).astype(np.uint8)
    assert placement.part(blocks, 0, 1).tolist() == [[at % 256 for at in tile] for tile in ups]


def groups_of_all_kinds():
    """One group an output."""
    random = np.random.default_rng(0)
    normal = random.standard_normal((8, GROUP))
    return np.concatenate(
        [
            normal,
            normal * 1e-3,
            normal * 1e-6,  # steps below the normal numbers of float16
            normal * 1e-9,
            normal * 1e4,
            np.zeros((1, GROUP)),
            np.full((1, GROUP), 5.1),
            np.full((1, GROUP), -5.1),
            np.full((1, GROUP), 1e-7),
            5 + normal * 1e-4,  # a range below the distance of neighbours in float16
            -5 + normal * 1e-4,
            np.abs(normal),
            -np.abs(normal),
            np.where(np.arange(GROUP) == 3, 1000.0, normal),  # one that leaves the others nothing
        ]
    ).astype(np.float32)


@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_stays_within_half_a_step(bits):
    groups = groups_of_all_kinds()
    matrix = quantise(groups, bits)
    assert matrix.format is (Format.INT8 if bits == 8 else Format.INT4_MIN)
    step = np.abs(groups).max(axis=1) / 127
    if bits == 4:
        below = groups.min(axis=1)
        below = below - np.maximum(np.abs(below) * 1e-3, SMALLEST)
        step = (groups.max(axis=1) - below) / 15
    step = np.maximum(step * 1.001, step + SMALLEST)
    error = np.abs(dequantise(matrix) - groups)
    float32_error = np.abs(groups).max(axis=1) * 2.0**-22
    assert (error <= (step / 2 + float32_error)[:, None]).all()
    assert np.array_equal(unpack(pack_quantised(matrix), matrix.format)[: len(groups)], dequantise(matrix))


@pytest.mark.parametrize("bits", [8, 4])
def test_zeros_stay_zeros(bits):
    assert not dequantise(quantise(np.zeros((2, 2 * GROUP), np.float32), bits)).any()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_that_fit(bits, sign):
    largest = LARGEST * 127 if bits == 8 else LARGEST
    values = np.full((1, GROUP), sign * largest, np.float32)
    values[0, 1] = 0.0
    np.testing.assert_allclose(dequantise(quantise(values, bits)), values, rtol=0, atol=largest * 1e-3)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value", [3e38, -3e38, 9e6, -9e6, np.inf, -np.inf, np.nan])
def test_weights_that_no_scale_fits_are_refused(bits, value):
    values = np.zeros((2, 2 * GROUP), np.float32)
    values[1, GROUP + 1] = value
    with pytest.raises(PackingError, match="not finite, or too large"):
        quantise(values, bits)


@pytest.mark.parametrize("field", ["scales", "minima"])
def test_scales_beyond_float16_are_refused(field):
    matrix = random_matrix(Format.INT8_MIN, 3, 32)
    getattr(matrix, field)[2, 0] = 65520.0
    with pytest.raises(PackingError, match="float16"):
        pack_quantised(matrix)
