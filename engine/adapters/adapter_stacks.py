"""The pairs of the adapters in memory: arrays with a fixed number of slots, which programs read as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from engine.adapters.adapted_products import AdaptedMatrix
from engine.adapters.adapter_weights import AdapterWeights, LeafPair
from engine.adapters.gguf_adapter import open_adapter
from engine.adapters.pair_placement import PairPlacement
from engine.adapters.targets import AdapterTarget
from engine.backends.base.empty_arrays import EmptyArrays
from engine.backends.base.operands import LowRankPairs
from engine.interface.config import AdapterLimits
from engine.interface.errors import ModelError, naming
from engine.weights.host_memory import put_in_huge_pages
from engine.weights.layout import Params, Precision, WeightsLayout
from engine.weights.loader import LeafTensors

_RANK_MULTIPLE = 16  # to which ranks are filled up, for the kernels

Write = Callable[[LowRankPairs, np.int32, np.ndarray, np.ndarray, np.int32], LowRankPairs]


class AdapterStacks:
    """Makes the pairs of all slots beside the weights, and puts adapters into slots.

    An adapter may be put into a slot while no step in flight has a row of that slot.
    """

    def __init__(
        self, targets: Sequence[AdapterTarget], limits: AdapterLimits, weights: WeightsLayout, precision: Precision,
        architectures: Sequence[str], placement: PairPlacement | None = None, *, tensors: LeafTensors | None = None,
    ) -> None:  # fmt: skip
        """Compiles a program for each shape of pairs, which writes one slot.

        Args:
            weights: the layout of the weights beside which the pairs stand.
            architectures: names that the model's architecture may have in GGUF files.
            placement: where the pairs lie; by default on one device.
            tensors: of the weights, whose formats may say the type of pairs.
        """
        self._architectures = architectures
        self._targets = targets
        self._limits = limits
        self._rank = padded_rank(limits.max_rank)
        self._dtypes = pair_dtypes(targets, weights, precision, tensors)
        self._arranged = weights.arranged_pair
        self._placement = placement or PairPlacement()
        self._loaded: dict[int, AdapterWeights] = {}  # by slot
        self._shapes = {target.name: self._shapes_of(target) for target in targets}
        self._zeros = EmptyArrays(lambda shape: jnp.zeros(shape.shape, shape.dtype))
        self._writes = {name: _compiled(shapes) for name, shapes in self._shapes.items()}

    def read(self, path: Path) -> AdapterWeights:
        """Reads an adapter, in any thread; raises ModelError if it cannot be served beside these weights."""
        with naming(path):
            adapter = open_adapter(path)
            adapter.check_architecture(self._architectures)
            weights = adapter.read(self._targets, self._limits.max_rank, self._rank)
            for name, pair in weights.pairs.items():
                # Bytes have scales of float32.
                dtype = self._dtypes[name] if self._dtypes[name] != "uint8" else "float32"
                with np.errstate(over="ignore"):
                    halves = [half.astype(jnp.dtype(dtype)) for half in pair[:2]]
                if not all(np.isfinite(half).all() for half in halves):
                    raise ModelError(f"{path}: the adapter has numbers that are too large for {dtype}")
            return weights

    def attach(self, params: Params) -> Params:
        """The parameter tree with pairs of zeros beside the weights; `write_all` writes those that are loaded."""
        pairs: dict[str, LowRankPairs] = jax.block_until_ready(self._zeros(self._shapes))
        for stack in jax.tree.leaves(pairs):
            _put_in_huge_pages(stack)
        return {**params, **{name: AdaptedMatrix(params[name], pair) for name, pair in pairs.items()}}

    def load(self, params: Params, slot: int, weights: AdapterWeights) -> Params:
        """Puts an adapter into a slot; returns the tree with it. Takes the former pairs, which must not be used again.

        Weights that are not in the device's memory stay as they are, until `write_all` is called once they are back.
        """
        self._loaded[slot] = weights
        return self._written(params, slot, weights)

    def write_all(self, params: Params) -> Params:
        """As `load`, of all adapters that are in slots."""
        for slot, weights in self._loaded.items():
            params = self._written(params, slot, weights)
        return params

    def _written(self, params: Params, slot: int, weights: AdapterWeights) -> Params:
        written = dict(params)
        for target in self._targets:
            matrix: AdaptedMatrix = params[target.name]
            stack: object = matrix.pairs.down
            if not isinstance(stack, jax.Array):  # its shape, or a copy in the memory of the host
                return params
            pair = weights.pairs.get(target.name) or self._nothing(target)
            halves = self._arranged(pair.down, pair.up, self._dtypes[target.name])
            down, up = self._placement.halves(target, *halves)
            pairs = self._writes[target.name](matrix.pairs, np.int32(slot), down, up, np.int32(pair.rank))
            written[target.name] = AdaptedMatrix(matrix.base, pairs)
        return written

    def _nothing(self, target: AdapterTarget) -> LeafPair:
        """The pair of an adapter that does not change a leaf."""
        down, up = (np.zeros(shape, np.float32) for shape in self._halves_of(target))
        return LeafPair(down, up, 0)

    def _halves_of(self, target: AdapterTarget) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """The shapes of one adapter's matrices, before they are arranged."""
        layers, columns = len(target.layers), len(target.parts) * self._rank
        return (layers, columns, target.num_inputs), (layers, self._rank, target.ends[-1])

    def _shapes_of(self, target: AdapterTarget) -> LowRankPairs:
        slots = self._limits.num_slots

        def make() -> LowRankPairs:
            nothing = self._nothing(target)
            halves = self._arranged(nothing.down, nothing.up, self._dtypes[target.name])
            down, up = (jnp.zeros((slots, *half.shape), half.dtype) for half in halves)
            return LowRankPairs(down, up, jnp.zeros(slots, jnp.int32), target.ends)

        shapes: LowRankPairs = jax.eval_shape(make)
        return self._placement.stacks(target, shapes)


def pair_dtypes(
    targets: Sequence[AdapterTarget], weights: WeightsLayout, precision: Precision, tensors: LeafTensors | None
) -> dict[str, str]:
    """The type of the pairs beside each leaf, by its name."""
    leaves = {} if tensors is None else {leaf.name: tensors.of(leaf) for leaf in tensors.leaves if leaf.is_per_layer}
    return {target.name: weights.pair_dtype(precision, leaves.get(target.name, ())) for target in targets}


def padded_rank(rank: int) -> int:
    """The rank to which the pairs of adapters are filled up with zeros."""
    return -(-rank // _RANK_MULTIPLE) * _RANK_MULTIPLE


def _write(pairs: LowRankPairs, slot: jax.Array, down: jax.Array, up: jax.Array, rank: jax.Array) -> LowRankPairs:
    """The pairs with those of one slot replaced."""
    return replace(
        pairs,
        down=lax.dynamic_update_index_in_dim(pairs.down, down, slot, 0),
        up=lax.dynamic_update_index_in_dim(pairs.up, up, slot, 0),
        ranks=pairs.ranks.at[slot].set(rank),
    )


def _compiled(shapes: LowRankPairs) -> Write:
    place: Any = shapes.ranks.sharding  # None: JAX's first device
    scalar = jax.ShapeDtypeStruct((), jnp.int32, sharding=place)
    down, up = (_of_slot(stack) for stack in (shapes.down, shapes.up))
    places = None if place is None else jax.tree.map(lambda stack: stack.sharding, shapes)
    traced = jax.jit(_write, donate_argnums=0, out_shardings=places)
    write: Write = traced.lower(shapes, scalar, down, up, scalar).compile()
    return write


def _put_in_huge_pages(stack: jax.Array) -> None:
    """Each step reads many adapters, each in many places, and would look up each 4 KiB of a processor's memory."""
    for shard in stack.addressable_shards:
        if shard.device.platform == "cpu":
            put_in_huge_pages(shard.data.unsafe_buffer_pointer(), shard.data.nbytes)


def _of_slot(stack: jax.Array) -> jax.ShapeDtypeStruct:
    """One slot of a stack, from abstract arrays; slots are never split over devices."""
    sharding = stack.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
    return jax.ShapeDtypeStruct(stack.shape[1:], stack.dtype, sharding=sharding)
