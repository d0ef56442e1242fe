"""The wire format of an adapter from the leader to its followers: a message for each layer of a leaf, and a last one.

So no message is larger than a layer, however large an adapter is, and followers need no files of adapters.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from engine.adapters.adapter_weights import AdapterWeights, LeafPair
from engine.multihost.messages import Kind

# Of a layer: bytes of the leaf's name, its layers, which of them this is, the rank; rows and inputs of the first half,
# the padded rank and outputs of the second.
_LAYER = struct.Struct("<8I")
_SLOT = struct.Struct("<I")
_NUMBER = np.dtype("<f4")


def pack(slot: int, weights: AdapterWeights) -> Iterator[tuple[Kind, Sequence[bytes]]]:
    """The kinds and contents of the messages that put an adapter into a slot."""
    for name, (down, up, rank) in weights.pairs.items():
        encoded = name.encode()
        for layer, halves in enumerate(zip(down, up, strict=True)):
            front = _LAYER.pack(len(encoded), len(down), layer, rank, *halves[0].shape, *halves[1].shape)
            yield Kind.ADAPTER_LAYER, [front, encoded, *(half.astype(_NUMBER).tobytes() for half in halves)]
    yield Kind.LOAD_ADAPTER, [_SLOT.pack(slot), weights.digest.encode()]


class AdapterFrames:
    """Collects the layers of one adapter after another."""

    def __init__(self) -> None:
        self._pairs: dict[str, LeafPair] = {}

    def add_layer(self, content: bytes) -> None:
        """Takes one layer; raises ValueError if it has other sizes than it says."""
        try:
            length, num_layers, layer, rank, rows, inputs, padded_rank, outputs = _LAYER.unpack_from(content)
        except struct.error as error:
            raise ValueError("a layer of an adapter is cut off") from error
        start = _LAYER.size + length
        numbers = np.frombuffer(content[start:], _NUMBER)
        if layer >= num_layers or len(numbers) != rows * inputs + padded_rank * outputs:
            raise ValueError("a layer of an adapter has other sizes than it says")
        name = content[_LAYER.size : start].decode()
        pair = self._pairs.get(name)
        if pair is None:
            down = np.zeros((num_layers, rows, inputs), np.float32)
            pair = self._pairs[name] = LeafPair(down, np.zeros((num_layers, padded_rank, outputs), np.float32), rank)
        if (pair.down.shape, pair.up.shape) != ((num_layers, rows, inputs), (num_layers, padded_rank, outputs)):
            raise ValueError("a layer of an adapter has other sizes than the one before it")
        pair.down[layer] = numbers[: rows * inputs].reshape(rows, inputs)
        pair.up[layer] = numbers[rows * inputs :].reshape(padded_rank, outputs)

    def finish(self, content: bytes) -> tuple[int, AdapterWeights]:
        """The slot, and the adapter whose layers have come; raises ValueError if the message is cut off."""
        if len(content) < _SLOT.size:
            raise ValueError("the slot of an adapter is cut off")
        (slot,) = _SLOT.unpack_from(content)
        pairs, self._pairs = self._pairs, {}
        return slot, AdapterWeights(pairs, content[_SLOT.size :].decode())
