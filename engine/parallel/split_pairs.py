"""Pairs of adapters that are split over the devices of a mesh as the weights beside which they stand.

Of a leaf with split outputs each device has the ups of its own outputs, and all downs. Of one with split inputs it has
the downs of its own inputs and all ups, so that what the devices make is added up.
"""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from engine.adapters.pair_placement import PairPlacement
from engine.adapters.targets import AdapterTarget
from engine.backends.base.operands import LowRankPairs
from engine.parallel.mesh import AXIS
from engine.weights.leaf import Split

_INPUTS, _OUTPUTS = 2, 3  # axes of `down` and of `up`


class SplitPlacement(PairPlacement):
    """The `PairPlacement` over a mesh, of pairs with XLA's axes; `ends` are those of one device."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def stacks(self, target: AdapterTarget, shapes: LowRankPairs) -> LowRankPairs:
        split, count = target.leaf.split, self._mesh.size
        of_inputs, of_outputs = split is Split.INPUTS, _has_split_outputs(split)

        def on_mesh(array: jax.Array, axis: int | None) -> jax.ShapeDtypeStruct:
            spec = () if axis is None else (*(None,) * axis, AXIS)
            return jax.ShapeDtypeStruct(
                array.shape, array.dtype, sharding=NamedSharding(self._mesh, PartitionSpec(*spec))
            )

        return LowRankPairs(
            on_mesh(shapes.down, _INPUTS if of_inputs else None),  # type: ignore[arg-type]  # abstract arrays
            on_mesh(shapes.up, _OUTPUTS if of_outputs else None),  # type: ignore[arg-type]
            on_mesh(shapes.ranks, None),  # type: ignore[arg-type]
            tuple(end // count for end in shapes.ends) if of_outputs else shapes.ends,
        )

    def halves(self, target: AdapterTarget, down: np.ndarray, up: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A device has its share of each part, one behind the other, as it has of the weights."""
        if not _has_split_outputs(target.leaf.split) or len(target.parts) == 1:
            return down, up
        shares = [np.split(part, self._mesh.size, axis=-1) for part in np.split(up, target.ends[:-1], axis=-1)]
        return down, np.concatenate([piece for of_device in zip(*shares, strict=True) for piece in of_device], axis=-1)


def _has_split_outputs(split: Split) -> bool:
    return split in (Split.OUTPUTS, Split.HEADS)
