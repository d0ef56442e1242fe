"""Which replicas there are and where: replicas write it, the front reads it.

The other way round it has one number, by which replicas see that they shall read their keys again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

LEASE_S = 15.0  # a replica that has not said for so long that it is there counts as gone
LONGEST_WAIT_S = 2.0


class Front(NamedTuple):
    """The reader of the book: a replica beside it can listen on a Unix socket, and all know it by its key."""

    node: str  # Ray's id of the machine
    user: int  # who alone can open such a socket
    key: str  # as the setting `front_key`


class Addresses(NamedTuple):
    """The addresses of all replicas at one moment."""

    version: int  # grows with each change
    by_replica: dict[str, str]  # a replica's id: unix:/path or http://host:port


@dataclass(slots=True)
class _Entry:
    address: str
    until: float


class AddressBook:
    """The book; Ray makes an actor of it, whose coroutines share one loop.

    Replicas renew their entries all the time, so a new book that stands in for a lost one fills by itself.
    """

    def __init__(self, front: Front, clock: Callable[[], float] = time.monotonic) -> None:
        self._front = front
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._version = 0
        self._num_reloads = time.time_ns()  # never what a lost book had, so that replicas see the difference
        self._changed = asyncio.Event()

    async def front(self) -> Front:
        """Who reads this book."""
        return self._front

    async def ask_reload(self) -> None:
        """Every replica shall read its keys again; each notices when it next renews its entry."""
        self._num_reloads += 1

    async def num_reloads(self) -> int:
        """Grows whenever the replicas are asked to. A server that starts afterwards has read the keys since."""
        return self._num_reloads

    async def enter(self, replica: str, address: str) -> int:
        """Writes or renews an entry; returns `num_reloads`."""
        known = self._entries.get(replica)
        self._entries[replica] = _Entry(address, self._clock() + LEASE_S)
        if known is None or known.address != address:
            self._note_change()
        return self._num_reloads

    async def strike(self, replica: str) -> None:
        """Removes an entry, if it is there: nothing new shall go to this replica."""
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
        expired = [replica for replica, entry in self._entries.items() if entry.until < now]
        for replica in expired:
            del self._entries[replica]
        if expired:
            self._note_change()

    def _note_change(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()
