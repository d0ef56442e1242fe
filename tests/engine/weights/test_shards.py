"""What devices hold of a leaf: shares that compute their part of the product, and together make the leaf."""

from __future__ import annotations

import numpy as np
import pytest

from engine.weights.leaf import Leaf, LeafKind, Part, Split
from engine.weights.shards import shard_of

INPUTS = 8
RANDOM = np.random.default_rng(0)


def leaf(kind, split, *shapes, num_experts=0):
    return Leaf("leaf", kind, tuple(Part(shape, {}) for shape in shapes), split, num_experts=num_experts)


def held(weights, shard):
    """A device's weights, cut out of the joined leaf [outputs, inputs] or [outputs]."""
    rows = np.concatenate([weights[rows] for rows in shard.outputs])
    return rows if shard.inputs is None else rows[:, shard.inputs]


def shards(declared, num_devices, **named):
    return [shard_of(declared, device, num_devices, **named) for device in range(num_devices)]


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_columns_are_joined(num_devices):
    weights, x = RANDOM.standard_normal((12, INPUTS)), RANDOM.standard_normal(INPUTS)
    declared = leaf(LeafKind.MATRIX, Split.OUTPUTS, (12, INPUTS))
    products = [held(weights, shard) @ x for shard in shards(declared, num_devices)]
    np.testing.assert_allclose(np.concatenate(products), weights @ x)


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_products_of_rows_are_added(num_devices):
    weights, x = RANDOM.standard_normal((12, INPUTS)), RANDOM.standard_normal(INPUTS)
    declared = leaf(LeafKind.MATRIX, Split.INPUTS, (12, INPUTS))
    products = [held(weights, shard) @ x[shard.inputs] for shard in shards(declared, num_devices)]
    assert {product.shape for product in products} == {(12,)}
    np.testing.assert_allclose(sum(products), weights @ x)


@pytest.mark.parametrize("shapes", [[(6, INPUTS), (6, INPUTS)], [(12, INPUTS)]], ids=["two parts", "one part"])
def test_a_device_has_the_gates_of_its_ups(shapes):
    weights, x = RANDOM.standard_normal((12, INPUTS)), RANDOM.standard_normal(INPUTS)
    gate, up = weights[:6] @ x, weights[6:] @ x
    got = []
    for shard in shards(leaf(LeafKind.GATED, Split.OUTPUTS, *shapes), 3):
        its_gate, its_up = np.split(held(weights, shard) @ x, 2)
        got.append(its_gate * its_up)
    np.testing.assert_allclose(np.concatenate(got), gate * up)


@pytest.mark.parametrize("shapes", [[(16, INPUTS), (8, INPUTS), (8, INPUTS)], [(32, INPUTS)]], ids=["parts", "fused"])
def test_heads_stay_whole(shapes):
    """Four heads of queries, two of keys and two of values, of four features each."""
    declared = leaf(LeafKind.MATRIX, Split.HEADS, *shapes)
    heads = np.repeat(np.arange(8), 4)[:, None] * np.ones(INPUTS, int)
    first, second = (held(heads, shard)[::4, 0].tolist() for shard in shards(declared, 2, num_heads=(4, 2, 2)))
    assert (first, second) == ([0, 1, 4, 6], [2, 3, 5, 7])
    assert shard_of(declared, 1, 2, num_heads=(4, 2, 2)).outputs == (slice(8, 16), slice(20, 24), slice(28, 32))


def test_what_is_replicated_is_whole_everywhere():
    for shard in shards(leaf(LeafKind.VECTOR, Split.REPLICATED, (12,)), 5):
        assert (shard.outputs, shard.inputs, shard.experts) == ((slice(0, 12),), None, None)


def test_a_bias_is_split_as_the_outputs():
    declared = leaf(LeafKind.VECTOR, Split.OUTPUTS, (12,))
    bias = np.arange(12)
    assert [held(bias, shard).tolist() for shard in shards(declared, 2)] == [[*range(6)], [*range(6, 12)]]


def test_experts_stay_whole():
    declared = leaf(LeafKind.MATRIX, Split.EXPERTS, (12, INPUTS), num_experts=6)
    of_experts = [shard.experts for shard in shards(declared, 3)]
    assert of_experts == [slice(0, 2), slice(2, 4), slice(4, 6)]
    for shard in shards(declared, 3):
        assert (shard.outputs, shard.inputs) == ((slice(0, 12),), slice(0, INPUTS))


@pytest.mark.parametrize(
    ("declared", "device", "num_heads", "words"),
    [
        (leaf(LeafKind.MATRIX, Split.OUTPUTS, (12, INPUTS)), 5, (), "device is 5; it must be from 0 to 4"),
        (leaf(LeafKind.MATRIX, Split.OUTPUTS, (12, INPUTS)), -1, (), "device is -1"),
        (leaf(LeafKind.MATRIX, Split.OUTPUTS, (12, INPUTS)), 0, (), "has 12 outputs, which 5 devices cannot share"),
        (leaf(LeafKind.GATED, Split.OUTPUTS, (12, INPUTS)), 0, (), "has 6 gates, which 5 devices"),
        (leaf(LeafKind.MATRIX, Split.INPUTS, (12, INPUTS)), 0, (), "has 8 inputs, which 5 devices"),
        (leaf(LeafKind.VECTOR, Split.INPUTS, (12,)), 0, (), "is a vector, which has no inputs to split"),
        (leaf(LeafKind.MATRIX, Split.HEADS, (32, INPUTS)), 0, (4, 2, 2), "has 4 heads, which 5 devices"),
        (leaf(LeafKind.MATRIX, Split.HEADS, (32, INPUTS)), 0, (), r"has 32 outputs; num_heads is \(\)"),
        (leaf(LeafKind.MATRIX, Split.HEADS, (32, INPUTS)), 0, (3, 2), r"num_heads is \(3, 2\)"),
        (leaf(LeafKind.MATRIX, Split.EXPERTS, (12, INPUTS), num_experts=6), 0, (), "has 6 experts, which 5 devices"),
        (leaf(LeafKind.MATRIX, Split.EXPERTS, (12, INPUTS)), 0, (), "has no experts to split"),
    ],
)  # fmt: skip
def test_what_cannot_be_split(declared, device, num_heads, words):
    with pytest.raises(ValueError, match=words):
        shard_of(declared, device, 5, num_heads=num_heads)
