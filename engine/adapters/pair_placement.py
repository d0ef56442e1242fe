"""Where the pairs of adapters lie: the interface, and the placement on one device."""

from __future__ import annotations

import numpy as np

from engine.adapters.targets import AdapterTarget
from engine.backends.base.operands import LowRankPairs


class PairPlacement:
    """The devices of the pairs; this class is the placement on JAX's first device."""

    def stacks(self, target: AdapterTarget, shapes: LowRankPairs) -> LowRankPairs:
        """The abstract arrays of a leaf's pairs as they lie on the devices, from those without a place."""
        return shapes

    def halves(self, target: AdapterTarget, down: np.ndarray, up: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pair of one adapter with its numbers in the order in which the stacks have them."""
        return down, up
