"""Which slices of a leaf each of several devices holds, as tensor and expert parallelism split it.

Sources: Shoeybi et al., "Megatron-LM", 2019 (outputs, inputs and heads); Lepikhin et al., "GShard", 2020 (experts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.weights.leaf import Leaf, LeafKind, Split


@dataclass(frozen=True)
class Shard:
    """What one device holds of a leaf, in every layer. Slices count in the leaf's joined parts, [outputs, inputs]."""

    outputs: tuple[slice, ...]  # joined in this order
    inputs: slice | None  # None: the leaf is a vector, which has outputs alone
    experts: slice | None  # None: the leaf has no experts


def shard_of(leaf: Leaf, device: int, num_devices: int, *, num_heads: Sequence[int] = ()) -> Shard:
    """The slices of a leaf that one device holds; those of all devices make up the leaf, or are all of it each.

    Args:
        device: from 0 to num_devices - 1.
        num_heads: of a leaf that is split by heads, the heads of each kind in the order of its outputs, such as those
            of queries, keys and values. All heads have the same size.

    Raises:
        ValueError: there is no such device, or what is split does not divide among the devices.
    """
    if not 0 <= device < num_devices:
        raise ValueError(f"device is {device}; it must be from 0 to {num_devices - 1}")
    total = sum(part.shape[0] for part in leaf.parts)
    num_inputs = leaf.parts[0].shape[1] if len(leaf.parts[0].shape) > 1 else None
    outputs: tuple[slice, ...] = (slice(0, total),)
    inputs = None if num_inputs is None else slice(0, num_inputs)
    experts = slice(0, leaf.num_experts) if leaf.num_experts else None

    def share(what: str, number: int, start: int = 0, size: int = 1) -> slice:
        """This device's of a number of things, each of `size` rows, that begin at a row."""
        if number % num_devices:
            raise ValueError(f"the leaf {leaf.name!r} has {number} {what}, which {num_devices} devices cannot share")
        length = number // num_devices * size
        return slice(start + device * length, start + (device + 1) * length)

    match leaf.split:
        case Split.REPLICATED:
            pass
        case Split.OUTPUTS if leaf.kind is LeafKind.GATED:
            outputs = (share("gates", total // 2), share("gates", total // 2, total // 2))
        case Split.OUTPUTS:
            outputs = (share("outputs", total),)
        case Split.INPUTS:
            if num_inputs is None:
                raise ValueError(f"the leaf {leaf.name!r} is a vector, which has no inputs to split")
            inputs = share("inputs", num_inputs)
        case Split.HEADS:
            if not sum(num_heads) or total % sum(num_heads):
                raise ValueError(f"the leaf {leaf.name!r} has {total} outputs; num_heads is {tuple(num_heads)}")
            size = total // sum(num_heads)
            starts = (size * sum(num_heads[:kind]) for kind in range(len(num_heads)))
            outputs = tuple(share("heads", number, at, size) for number, at in zip(num_heads, starts, strict=True))
        case Split.EXPERTS:
            if not leaf.num_experts:
                raise ValueError(f"the leaf {leaf.name!r} has no experts to split")
            experts = share("experts", leaf.num_experts)
    return Shard(outputs, inputs, experts)
