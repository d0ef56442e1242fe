"""The registry of a deployment's replicas and their addresses: replicas renew their entries, the router reads them.

In the other direction it has a counter, by which replicas see that they shall read their keys again.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

LEASE_S = 15.0  # after which an entry that was not renewed expires
LONGEST_WAIT_S = 2.0


class RouterInfo(NamedTuple):
    """The router of a deployment. A replica on its machine can listen on a Unix socket."""

    node: str  # Ray's id of the machine
    user: int  # who alone can open such a socket
    key: str  # the setting `front_key`


class Addresses(NamedTuple):
    """The addresses of all replicas at one moment."""

    version: int  # grows with each change
    by_replica: dict[str, str]  # a replica's id: unix:/path or http://host:port


@dataclass(slots=True)
class _Entry:
    address: str
    expires_at: float


class AddressBook:
    """The registry; Ray makes an actor of it, whose coroutines share one loop.

    Replicas renew their entries all the time, so a new book that replaces a lost one fills by itself.
    """

    def __init__(self, router: RouterInfo, clock: Callable[[], float] = time.monotonic) -> None:
        self._router = router
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._version = 0
        self._num_reloads = time.time_ns()  # never what a lost book had, so that replicas see the difference
        self._changed = asyncio.Event()

    async def router(self) -> RouterInfo:
        return self._router

    async def request_reload(self) -> None:
        """Has every replica read its keys again; each notices when it next renews its entry."""
        self._num_reloads += 1

    async def num_reloads(self) -> int:
        """Grows with each `request_reload`. A server that starts afterwards has read the keys since."""
        return self._num_reloads

    async def register(self, replica: str, address: str) -> int:
        """Writes or renews an entry; returns `num_reloads`."""
        known = self._entries.get(replica)
        self._entries[replica] = _Entry(address, self._clock() + LEASE_S)
        if known is None or known.address != address:
            self._note_change()
        return self._num_reloads

    async def deregister(self, replica: str) -> None:
        """Removes an entry, so that the replica gets no new requests. Idempotent."""
        if self._entries.pop(replica, None) is not None:
            self._note_change()

    async def read(self, known_version: int = -1) -> Addresses:
        """All addresses, as soon as they differ from those of `known_version`, or after `LONGEST_WAIT_S`."""
        if known_version == self._version:
            try:
                async with asyncio.timeout(LONGEST_WAIT_S):
                    await self._changed.wait()
            except TimeoutError:
                self._drop_expired()
        return Addresses(self._version, {replica: entry.address for replica, entry in self._entries.items()})

    def _drop_expired(self) -> None:
        now = self._clock()
        expired = [replica for replica, entry in self._entries.items() if entry.expires_at < now]
        for replica in expired:
            del self._entries[replica]
        if expired:
            self._note_change()

    def _note_change(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()
