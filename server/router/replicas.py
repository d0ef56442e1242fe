"""The replicas behind one router, which may come and go while it runs, and the source that starts them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, Self

from server.protocol.errors import ApiError, unavailable
from server.router.policies import PrefixAffinity, RoutingPolicy
from server.router.replica import Preparing, Replica, ReplicaState, unprepared
from server.startup.logs import log

CHECK_S = 0.5  # between two health checks of a replica
POLL_S = 0.05  # between them while a replica starts, or a request waits for one


class ReplicaSource(Protocol):
    """Starts and stops replicas, as local processes (`LocalReplicas`) or on a Ray cluster (`RayApplication`)."""

    @property
    def description(self) -> str:
        """For the user, such as `2 replicas`."""
        ...

    async def start(self, replicas: Replicas) -> None:
        """Starts the replicas, keeps `replicas` up to date, and returns when they are ready; raises SourceFailed."""
        ...

    async def reload(self) -> None:
        """Has every replica read its keys again."""
        ...

    def drain(self) -> None:
        """Lets the replicas end once no request is open on them, because the router accepts no more. Idempotent."""
        ...

    async def stop(self) -> None:
        """Ends all replicas, also where `start` failed or was cancelled."""
        ...


class SourceFailed(Exception):
    """The replicas could not be started; the message is for the user, the status for the router's process."""

    def __init__(self, reason: str, status: int = 1) -> None:
        super().__init__(reason)
        self.status = status


class Replicas:
    """The replicas by name. Their health is checked all the time while the context lasts.

        async with Replicas() as replicas:
            replicas.update({"0": "unix:/run/eagre/0", "1": "http://10.0.0.7:8000"})
            runner = make_router_runner(router_application(replicas, settings))

    The router becomes ready when those that it began with have all been ready once. Afterwards one is enough.
    """

    def __init__(self, policy: RoutingPolicy | None = None) -> None:
        """`policy` is `PrefixAffinity` if None."""
        self._policy = PrefixAffinity() if policy is None else policy
        self._replicas: dict[str, Replica] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._removals: set[asyncio.Task[None]] = set()
        self._has_begun = False
        self.preparing: Preparing = unprepared  # in which a replica becomes ready

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        names = tuple(self._replicas)
        await asyncio.gather(*(self.remove(name) for name in names), *self._removals, return_exceptions=True)

    def __iter__(self) -> Iterator[Replica]:
        return iter(tuple(self._replicas.values()))

    def __len__(self) -> int:
        return len(self._replicas)

    def get(self, name: str) -> Replica | None:
        return self._replicas.get(name)

    def add(self, name: str, address: str) -> Replica:
        """Adds a replica, which gets requests once it is ready; raises ValueError for a known name or bad address."""
        if name in self._replicas:
            raise ValueError(f"there is a replica {name} already, at {self._replicas[name].address}")
        replica = self._replicas[name] = Replica(name, address, self._prepare)
        self._checks[name] = asyncio.create_task(self._check_forever(replica))
        return replica

    def drain(self, name: str) -> None:
        """Gives the replica no new requests, and removes it once none is open on it. Unknown names are ignored."""
        replica = self._replicas.get(name)
        if replica is not None and not replica.is_leaving:
            replica.is_leaving = True
            task = asyncio.create_task(self._remove_when_unused(replica))
            self._removals.add(task)
            task.add_done_callback(self._removals.discard)

    async def remove(self, name: str) -> None:
        """Removes the replica at once. Its open requests break off, and go on at another one where they can."""
        replica = self._replicas.pop(name, None)
        if replica is not None:
            check = self._checks.pop(name)
            check.cancel()
            await asyncio.gather(check, return_exceptions=True)
            await replica.close()

    def update(self, addresses: Mapping[str, str]) -> None:
        """Makes these the replicas, by name: adds new ones and drains others. One whose address has changed is drained
        under its old address.

        Raises ValueError: an address cannot be read.
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
        """Those that may get new requests."""
        return [replica for replica in self._replicas.values() if replica.is_usable]

    @property
    def is_ready(self) -> bool:
        """Whether the router accepts requests."""
        if not self._has_begun:
            staying = [replica for replica in self if not replica.is_leaving]
            self._has_begun = bool(staying) and all(replica.has_been_ready for replica in staying)
        return self._has_begun and bool(self.usable)

    def choose(self, blocks: Sequence[int] = (), avoid: Collection[Replica] = ()) -> Replica:
        """The replica for a prompt of these blocks, by the routing policy; raises ApiError (503) where none is usable.

        `avoid` have failed the request already, and are taken only where there is no other.
        """
        usable = self.usable
        candidates = [replica for replica in usable if replica not in avoid] or usable
        if not candidates:
            raise no_replica()
        return self._policy.choose(candidates, blocks)

    async def wait_usable(self, seconds: float) -> bool:
        """Waits until a replica is usable; False if none is in time."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while not self.usable:
            if clock() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def _prepare(self, replica: Replica) -> AbstractAsyncContextManager[None]:
        return self.preparing(replica)

    def _rename(self, replica: Replica) -> None:
        """Frees the name of a replica that leaves."""
        check = self._checks.pop(replica.name)
        del self._replicas[replica.name]
        replica.name = f"{replica.name} at {replica.address}"
        self._replicas[replica.name], self._checks[replica.name] = replica, check

    async def _check_forever(self, replica: Replica) -> None:
        while True:
            before = replica.state
            try:
                await replica.check_health()
            except Exception:  # noqa: BLE001 - whatever it is, the replica must be checked again
                log.exception("replica_check_failed", replica=replica.name)
            if replica.state is not before:
                write = log.warning if replica.state is ReplicaState.GONE else log.info
                write("replica", replica=replica.name, state=replica.state, detail=replica.detail)
            await asyncio.sleep(CHECK_S if replica.has_been_ready else POLL_S)

    async def _remove_when_unused(self, replica: Replica) -> None:
        while replica.num_open:
            await asyncio.sleep(CHECK_S)
            if not replica.is_leaving:
                return
        if self._replicas.get(replica.name) is replica:
            await self.remove(replica.name)


def no_replica() -> ApiError:
    """503: no replica is usable."""
    return unavailable("no server behind this front takes requests at the moment; try again soon", "no_replica")
