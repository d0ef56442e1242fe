"""The servers behind one front, which may come and go while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Self

from server.protocol.errors import ApiError, unavailable
from server.router.policies import Choice
from server.router.replica import Replica, State
from server.startup.logs import log

CHECK_S = 0.5  # between two looks at the health of a replica
POLL_S = 0.05  # while somebody waits for one


class Replicas:
    """The replicas by their names. Used as `async with`, while which each is asked for its health all the time.

        async with Replicas() as replicas:
            replicas.update({"0": "unix:/run/eagre/0", "1": "http://10.0.0.7:8000"})
            runner = make_front_runner(front_application(replicas, settings), settings)

    A front begins to be ready when those that it began with have all been ready once. Afterwards one is enough.
    """

    def __init__(self) -> None:
        self._replicas: dict[str, Replica] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._choice = Choice()
        self._has_begun = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        names = tuple(self._replicas)
        await asyncio.gather(*(self.remove(name) for name in names), *self._endings, return_exceptions=True)

    def __iter__(self) -> Iterator[Replica]:
        return iter(tuple(self._replicas.values()))

    def __len__(self) -> int:
        return len(self._replicas)

    def get(self, name: str) -> Replica | None:
        return self._replicas.get(name)

    def add(self, name: str, address: str) -> Replica:
        """Adds a replica, which gets requests as soon as it says that it is ready.

        Raises:
            ValueError: there is one of this name, or the address cannot be read.
        """
        if name in self._replicas:
            raise ValueError(f"there is a replica {name} already, at {self._replicas[name].address}")
        replica = self._replicas[name] = Replica(name, address)
        self._watches[name] = asyncio.create_task(self._watch(replica))
        return replica

    def drain(self, name: str) -> None:
        """Gives the replica nothing new, and forgets it once nothing is open on it. Unknown names pass."""
        replica = self._replicas.get(name)
        if replica is not None and not replica.is_leaving:
            replica.is_leaving = True
            task = asyncio.create_task(self._remove_unused(replica))
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)

    async def remove(self, name: str) -> None:
        """Forgets the replica at once. What is open on it breaks off, and goes on elsewhere where it can."""
        replica = self._replicas.pop(name, None)
        if replica is not None:
            watch = self._watches.pop(name)
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await replica.close()

    def update(self, addresses: Mapping[str, str]) -> None:
        """Makes these the replicas, by name: new ones are added and others drained. One that has another address now
        is drained under its old one.

        Raises:
            ValueError: an address cannot be read.
        """
        for replica in self:
            if addresses.get(replica.name) != replica.address:
                if replica.name in addresses:  # the name is needed at once
                    self._rename(replica)
                self.drain(replica.name)
        for name, address in addresses.items():
            known = self._replicas.get(name)
            if known is None:
                self.add(name, address)
            else:
                known.is_leaving = False

    @property
    def usable(self) -> list[Replica]:
        """Those that may get something new."""
        return [replica for replica in self._replicas.values() if replica.is_usable]

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted."""
        if not self._has_begun:
            staying = [replica for replica in self if not replica.is_leaving]
            self._has_begun = bool(staying) and all(replica.has_been_ready for replica in staying)
        return self._has_begun and bool(self.usable)

    def choose(self, blocks: Sequence[int] = (), avoid: Collection[Replica] = ()) -> Replica:
        """The best replica for a prompt of these blocks.

        Args:
            avoid: those that have failed the request already; they are taken where there is no other.

        Raises:
            ApiError: 503, no replica takes requests.
        """
        usable = self.usable
        candidates = [replica for replica in usable if replica not in avoid] or usable
        if not candidates:
            raise no_replica()
        return self._choice.of(candidates, blocks)

    async def wait_usable(self, seconds: float) -> bool:
        """Waits until a replica takes requests; False if none does in time."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while not self.usable:
            if clock() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def _rename(self, replica: Replica) -> None:
        """Frees the name of a replica that leaves."""
        watch = self._watches.pop(replica.name)
        del self._replicas[replica.name]
        replica.name = f"{replica.name} at {replica.address}"
        self._replicas[replica.name], self._watches[replica.name] = replica, watch

    async def _watch(self, replica: Replica) -> None:
        while True:
            before = replica.state
            try:
                await replica.check()
            except Exception:  # noqa: BLE001 - whatever it is, the replica must be looked at again
                log.exception("replica_check_failed", replica=replica.name)
            if replica.state is not before:
                told = log.warning if replica.state is State.GONE else log.info
                told("replica", replica=replica.name, state=replica.state, detail=replica.detail)
            await asyncio.sleep(CHECK_S if replica.has_been_ready else POLL_S)

    async def _remove_unused(self, replica: Replica) -> None:
        while replica.num_open:
            await asyncio.sleep(CHECK_S)
            if not replica.is_leaving:
                return
        if self._replicas.get(replica.name) is replica:
            await self.remove(replica.name)


def no_replica() -> ApiError:
    """503: no server behind the front takes requests."""
    return unavailable("no server behind this front takes requests at the moment; try again soon", "no_replica")
