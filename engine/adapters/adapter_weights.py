"""The weights of one adapter, as they lie on the device."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

import numpy as np


class LeafPair(NamedTuple):
    """What an adapter adds to one leaf, filled up with zeros to the largest rank."""

    down: np.ndarray  # float32[num_layers, num_parts * rank, inputs]
    up: np.ndarray  # float32[num_layers, rank, outputs], times the adapter's scale
    rank: int  # of the adapter


class AdapterWeights(NamedTuple):
    """All pairs of an adapter by the names of their leaves; a leaf that it does not change is missing."""

    pairs: Mapping[str, LeafPair]
    digest: str  # of all of them: equal digests mean equal results


def weights_of(pairs: Mapping[str, LeafPair]) -> AdapterWeights:
    """The weights of these pairs, with their digest."""
    seen = sha256()
    for name in sorted(pairs):
        down, up, rank = pairs[name]
        seen.update(f"{name} {rank} {down.shape} {up.shape} ".encode())
        seen.update(np.ascontiguousarray(down).data)
        seen.update(np.ascontiguousarray(up).data)
    return AdapterWeights(pairs, seen.hexdigest()[:32])
