"""The pages that one waiting request gets from outside the engine before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cache.hashing import PageHash
from engine.kv_transfer.kv_connector import DevicePage, KVConnector


@dataclass(slots=True, eq=False)
class PrefetchJob:
    """Consecutive pages of a prefix, on their way into the pool in this order.

    0          num_landed                num_asked              len(names)
    | in the pool | asked for, some `ready` | not yet asked for |
    """

    names: Sequence[PageHash]
    parent_hash: bytes | None  # of the page before the first of them; None where that is the first of the prefix
    connector: KVConnector | None
    began_at: float = 0.0  # seconds on the clock of the transfers
    is_under_way: bool = True  # its request waits; otherwise nothing of it comes into the pool any more
    is_awaited: bool = True  # its request has not started yet, so that what came is still to be used
    num_asked: int = 0
    num_landed: int = 0
    ready: dict[int, DevicePage | None] = field(default_factory=dict)  # by index; None: the page cannot be had

    def end(self) -> None:
        """Nothing more is to come: all pages are there, or the rest is given up."""
        self.is_under_way = False
        self.ready.clear()

    def leave(self) -> None:
        """Its request has started or ended."""
        self.end()
        self.is_awaited = False


NOTHING = PrefetchJob((), None, None, is_under_way=False, is_awaited=False)
