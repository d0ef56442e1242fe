"""What is packed comes back from the blocks; what is rounded stays within its stated error."""

import numpy as np
import pytest

from engine.weights.packing import (
    GROUP,
    TILE,
    Format,
    PackedMatrix,
    PackingError,
    Quantised,
    alternate_tiles,
    from_nibbles,
    pack_floats,
    pack_quantised,
    quantise,
    to_nibbles,
    widen,
)
from tests.packed_blocks import float32, pack_stack, unpack

INTEGERS = [kind for kind in Format if kind.is_integer]
SMALLEST = 2.0**-24  # of float16
LARGEST = 65504.0


def random_matrix(kind, outputs, inputs, seed=0):
    """Numbers of the whole range, scales and minima of float16."""
    random = np.random.default_rng(seed)
    shape = (outputs, inputs // GROUP)
    numbers = random.integers(0, 16 if kind.is_nibbles else 256, (*shape, GROUP), np.uint8)
    scales, minima = random.standard_normal((2, *shape)).astype(np.float16).astype(np.float32)
    return Quantised(
        kind, scales, minima if kind.has_minima else None, to_nibbles(numbers) if kind.is_nibbles else numbers
    )


@pytest.mark.parametrize("kind", INTEGERS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (48, 96), (50, 64), (1, 32), (15, 256)])
def test_integers_come_back_and_missing_outputs_are_zeros(kind, outputs, inputs):
    matrix = random_matrix(kind, outputs, inputs)
    blocks = pack_quantised(matrix)
    assert blocks.shape == (-(-outputs // TILE), inputs // GROUP, kind.block_bytes)
    back = unpack(blocks, kind)
    assert np.array_equal(back[:outputs], float32(matrix))
    assert not back[outputs:].any()


@pytest.mark.parametrize("kind", [Format.FLOAT32, Format.BFLOAT16], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (50, 96)])
def test_floats_come_back(kind, outputs, inputs):
    matrix = np.random.default_rng(0).standard_normal((outputs, inputs)).astype(np.float32)
    blocks = pack_floats(matrix, kind)
    assert blocks.shape == (-(-outputs // TILE), inputs // GROUP, kind.block_bytes)
    back = unpack(blocks, kind)
    np.testing.assert_allclose(back[:outputs], matrix, rtol=0 if kind is Format.FLOAT32 else 2**-8)
    assert not back[outputs:].any()
    assert np.array_equal(pack_floats(back[:outputs], kind), blocks)


def test_a_scale_that_is_no_float16_is_rounded_by_one_part_in_two_thousand():
    matrix = random_matrix(Format.INT4_MIN, 16, 64)
    changed = matrix._replace(scales=matrix.scales * 1.0001, minima=matrix.minima * 0.9999)
    largest = np.abs(matrix.scales[..., None] * from_nibbles(matrix.numbers)) + np.abs(matrix.minima[..., None])
    error = np.abs(unpack(pack_quantised(changed), Format.INT4_MIN) - float32(changed))
    assert (error <= largest.reshape(error.shape) / 2000).all()


def test_nibbles_come_back():
    numbers = np.random.default_rng(0).integers(0, 16, (3, 2, GROUP), np.uint8)
    assert np.array_equal(from_nibbles(to_nibbles(numbers)), numbers)


def test_the_order_of_outputs_can_be_changed():
    matrix, order = random_matrix(Format.INT4_MIN, 8, 32), np.random.default_rng(1).permutation(8)
    assert np.array_equal(float32(matrix.reordered(order)), float32(matrix)[order])


def test_gate_and_up_lie_tile_by_tile():
    gate, up = random_matrix(Format.INT8, 48, 64, seed=1), random_matrix(Format.INT8, 48, 64, seed=2)
    back = unpack(alternate_tiles(pack_quantised(gate), pack_quantised(up)), Format.INT8).reshape(3, 2, TILE, 64)
    assert np.array_equal(back[:, 0].reshape(48, 64), float32(gate))
    assert np.array_equal(back[:, 1].reshape(48, 64), float32(up))


@pytest.mark.parametrize(
    ("kind", "wider"),
    [
        (Format.INT8, Format.INT8_MIN),
        (Format.INT4, Format.INT4_MIN),
        (Format.INT4, Format.INT8_MIN),
        (Format.INT4_MIN, Format.INT8_MIN),
    ],
)
def test_widening_is_exact(kind, wider):
    matrix = random_matrix(kind, 20, 64)
    wide = widen(matrix, wider)
    assert wide.format is wider
    np.testing.assert_allclose(float32(wide), float32(matrix), rtol=0, atol=2**-15)  # of float32's own rounding
    assert np.array_equal(unpack(pack_quantised(wide), wider)[:20], float32(wide))


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
    error = np.abs(float32(matrix) - groups)
    float32_error = np.abs(groups).max(axis=1) * 2.0**-22
    assert (error <= (step / 2 + float32_error)[:, None]).all()
    assert np.array_equal(unpack(pack_quantised(matrix), matrix.format)[: len(groups)], float32(matrix))


@pytest.mark.parametrize("bits", [8, 4])
def test_zeros_stay_zeros(bits):
    assert not float32(quantise(np.zeros((2, 2 * GROUP), np.float32), bits)).any()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_that_fit(bits, sign):
    largest = LARGEST * 127 if bits == 8 else LARGEST
    values = np.full((1, GROUP), sign * largest, np.float32)
    values[0, 1] = 0.0
    np.testing.assert_allclose(float32(quantise(values, bits)), values, rtol=0, atol=largest * 1e-3)


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


def test_the_sizes_of_a_stack():
    layers = [pack_quantised(random_matrix(Format.INT4, 50, 64, seed=layer)) for layer in range(3)]
    packed = pack_stack(layers, Format.INT4, 50)
    assert isinstance(packed, PackedMatrix)
    assert (packed.num_inputs, packed.num_outputs) == (64, 50)
    assert packed.blocks.shape == (3, 4, 2, Format.INT4.block_bytes)
