"""Every quantised format of GGUF files, against the dequantisation of the gguf package."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from engine.weights.formats.gguf_quants import FORMATS, quantised
from engine.weights.packing import GROUP, pack_quantised
from tests.gguf_tensors import random_rows
from tests.packed_blocks import float32, unpack

OUTPUTS, INPUTS = 40, 512


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_weights_are_those_of_the_file(kind, size):
    random = np.random.default_rng(0)
    rows = random_rows(random, kind, OUTPUTS, INPUTS, size)
    expected = dequantize(rows, kind)
    assert 0.5 * size < expected.std() < 2 * size
    matrix = quantised(rows, kind)
    assert matrix.format is FORMATS[kind]
    assert matrix.scales.shape == (OUTPUTS, INPUTS // GROUP)
    largest = np.abs(expected).reshape(OUTPUTS, -1, GROUP).max(axis=2)
    if kind is Kind.Q6_K:
        bound = np.maximum(largest * 1.001, largest + 127 * 2.0**-24) / 254
    else:
        # A group may lie far from 0: the terms that it is the sum of are larger than what remains.
        bound = 2.0**-22 * (largest + (0 if matrix.minima is None else np.abs(matrix.minima)))
    error = np.abs(float32(matrix) - expected).reshape(OUTPUTS, -1, GROUP).max(axis=2)
    assert (error <= bound).all()

    packed = unpack(pack_quantised(matrix), matrix.format)[:OUTPUTS]
    terms = largest + (0 if matrix.minima is None else 2 * np.abs(matrix.minima))
    error = np.abs(packed - float32(matrix)).reshape(OUTPUTS, -1, GROUP).max(axis=2)
    is_exact = not kind.name.endswith("_K") or kind is Kind.Q6_K
    # Scales of float16 stay as they are; of K-quants they are products. Near 0 their neighbours are 2^-24 apart.
    assert (error <= (2.0**-22 * terms if is_exact else np.maximum(terms / 2000, 32 * 2.0**-25))).all()
