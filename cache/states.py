"""The states of recurrent layers: their sizes, and where the states of slots and their snapshots lie in the arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

BYTES = 4  # of a float32, of which all states are


class StateArray(NamedTuple):
    """One state of each recurrent layer, such as the matrices of its heads or the inputs of its convolution."""

    name: str
    num_layers: int
    shape: tuple[int, ...]  # of a sequence in one layer


@dataclass(frozen=True)
class StateLayout:
    """Arrays float32[layer, entry, *shape]; an entry is the state of a slot or a snapshot.

    The first `num_slots` entries are those of the slots; the snapshots follow. Like pages, these are numbered from 1.
    """

    arrays: tuple[StateArray, ...] = ()
    num_slots: int = 0
    num_snapshots: int = 0

    @property
    def num_entries(self) -> int:
        return self.num_slots + self.num_snapshots

    def entry_of(self, snapshot: int) -> int:
        """Where a snapshot lies; never 0."""
        return self.num_slots - 1 + snapshot

    @property
    def bytes_per_entry(self) -> int:
        """Bytes of the state of one sequence."""
        return BYTES * sum(array.num_layers * math.prod(array.shape) for array in self.arrays)


LONGEST_INTERVAL = 448  # tokens between two snapshots of a prompt: with a tile, at most 512 are computed again


def snapshot_interval(state_bytes: int, bytes_per_page: int, page_size: int, tile_size: int) -> int:
    """Pages between two snapshots: so many that a snapshot takes no more memory than they do, within bounds.

    Where no layer has keys and values, pages take no memory. The interval is at least a tile, because a row of a step
    saves one snapshot at most.
    """
    least = -(-tile_size // page_size)
    most = max(least, LONGEST_INTERVAL // page_size)
    if not bytes_per_page:
        return most
    return min(max(-(-state_bytes // bytes_per_page), least), most)


def pages_beside_states(
    budget: int, bytes_per_page: int, num_useful: int, *, state_bytes: int, num_slots: int, interval: int
) -> tuple[int, int]:
    """The numbers of pages, the null page included, and of snapshots that fit into the budget beside the slots' states.

    There is one snapshot for each `interval` pages. Raises ValueError where the slots' states take more than a half of
    the budget, or nothing is left.
    """
    of_slots = num_slots * state_bytes
    if of_slots > budget // 2:
        raise ValueError(
            f"the states of {num_slots} requests take {of_slots} bytes, and may take a half of the {budget} bytes of "
            "the cache: lower max_num_seqs, or raise memory_utilization or kv_cache_bytes"
        )
    num_snapshots = (budget - of_slots) // (interval * bytes_per_page + state_bytes)
    if num_snapshots < 1:
        raise ValueError(
            f"the cache may take {budget} bytes, of which {of_slots} are states of requests; a snapshot of a state and "
            f"the {interval} pages before it do not fit: raise memory_utilization or kv_cache_bytes"
        )
    num_pages = min(num_snapshots * interval + 1, num_useful) if bytes_per_page else num_useful
    return num_pages, min(num_snapshots, num_snapshots_for(num_useful, interval))


def num_snapshots_for(num_pages: int, interval: int) -> int:
    """Snapshots that so many pages can have use of: one for each interval, and a few for what is running."""
    return -(-num_pages // interval) + 4
