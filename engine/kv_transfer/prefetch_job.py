"""A prefetch job: the pages that one waiting request loads from outside the engine before it starts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cache.hashing import PageHash
from engine.kv_transfer.kv_connector import DevicePage, KVConnector


@dataclass(slots=True, eq=False)
class PrefetchJob:
    """Pages of a prefix, on their way into the pool in this order.

    0          num_imported          num_requested        len(names)
    | in the pool | requested, some `ready` | not yet requested |
    """

    names: Sequence[PageHash]
    parent_hashes: Sequence[bytes | None]  # of the pages before them; None for the first page of a prefix
    connector: KVConnector | None
    began_at: float = 0.0  # seconds on the clock of the transfers
    is_active: bool = True  # its request waits; otherwise nothing of it comes into the pool any more
    is_awaited: bool = True  # its request has not started yet, so that what came is still to be used
    num_requested: int = 0
    num_imported: int = 0
    ready: dict[int, DevicePage | None] = field(default_factory=dict)  # by index; None: the page cannot be had

    def end(self) -> None:
        """Ends the job: all pages are there, or the rest is given up."""
        self.is_active = False
        self.ready.clear()

    def detach(self) -> None:
        """Notes that its request has started or ended."""
        self.end()
        self.is_awaited = False


NO_PREFETCH = PrefetchJob((), (), None, is_active=False, is_awaited=False)
