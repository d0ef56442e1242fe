"""The leader: it gathers its followers, agrees with them on what all allocate, and sends them every step."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from engine.interface.address import HostAddress
from engine.interface.types import EngineError, HostLost, Progress
from engine.multihost.link import PATIENCE_SECONDS, Link
from engine.multihost.messages import MAGIC, Kind, Message, difference, frame, unpack_facts

GATHER_SECONDS = 300.0  # the time in which all hosts must have come
SETTLE_SECONDS = 300.0  # the time in which a host must have opened its devices
_JOIN_SECONDS = 5.0  # the time in which a connection must have said who it is
_LAST_SECONDS = 1.0  # the time that followers have to end before the leader does
_BLAME_SECONDS = 1.0  # the time in which a lost host is noticed after a computation has failed
_MAX_BYTES = 1 << 20  # of a follower's message
_LOG = logging.getLogger(__name__)


class Leader:
    """Host 0 of several. All methods but `watch` and `broadcast` block, and are called while the model is loaded."""

    def __init__(self, address: HostAddress, num_hosts: int, facts: Mapping[str, str]) -> None:
        """Listens at the port after the coordinator's; raises ValueError if that fails.

        Args:
            facts: what must agree on all hosts.
        """
        self.address = address
        self._num_hosts = num_hosts
        self._facts = facts
        self._links: dict[int, Link] = {}  # by index of the host
        self._refusals: dict[int, str] = {}  # why hosts that came were refused
        self._is_closed = False
        try:
            found = socket.getaddrinfo(address.host, address.plan_port, type=socket.SOCK_STREAM)[0]
            self._listener = socket.create_server(found[4][:2], family=found[0], backlog=num_hosts)
        except OSError as error:
            raise ValueError(
                f"coordinator is {address}, and host 0 cannot listen at its port {address.plan_port}: {error}"
            ) from error

    def gather(self, progress: Progress, seconds: float = GATHER_SECONDS) -> None:
        """Waits until all hosts have joined; raises ValueError if they do not come in time.

        A host that differs is refused, and may retry.
        """
        ends_at = time.monotonic() + seconds
        with self._listener:
            while len(self._links) < self._num_hosts - 1:
                progress("wait for hosts", len(self._links) + 1, self._num_hosts)
                self._listener.settimeout(max(0.0, ends_at - time.monotonic()))
                try:
                    connection = self._listener.accept()[0]
                except (TimeoutError, BlockingIOError):
                    raise ValueError(self._missing(seconds)) from None
                self._admit(connection)
                self._links = {index: link for index, link in self._links.items() if link.lost is None}
        progress("wait for hosts", self._num_hosts, self._num_hosts)
        self.broadcast(Kind.ACCEPTED)

    def settle(self, facts: Mapping[str, str], num_pages: int) -> int:
        """The number of pages that every host has room for.

        Args:
            facts: of the devices, which must agree on all hosts.
            num_pages: that this host has room for.

        Raises:
            HostLost: a host is lost.
            ValueError: a host differs.
        """
        for index, link in self._links.items():
            offered = unpack_facts(self._expect(link, Kind.OFFER, SETTLE_SECONDS).content)
            num_pages = min(num_pages, int(offered.pop("num_pages")))
            different = difference(facts, offered)
            if different is not None:
                link.send(frame(Kind.REFUSED, different.encode()))
                raise ValueError(f"{self._name(index)} cannot compute with the leader: {different}")
        self.broadcast(Kind.SETTLED, str(num_pages).encode())
        return num_pages

    def await_ready(self) -> None:
        """Waits until every host has compiled its programs; raises HostLost."""
        for link in self._links.values():
            self._expect(link, Kind.READY, None)
        self.broadcast(Kind.BEGIN)
        for link in self._links.values():
            link.patience = PATIENCE_SECONDS

    def watch(self, on_lost: Callable[[HostLost], None]) -> None:
        """Calls `on_lost`, from any thread, when a host is lost; raises EngineError if they have been released."""
        if self._is_closed:
            raise EngineError("the other hosts have been let go, so that the engine cannot be used again")
        for link in self._links.values():
            link.watch(on_lost)

    def broadcast(self, kind: Kind, *parts: bytes | memoryview) -> None:
        """Sends to all followers; never waits for one."""
        message = frame(kind, *parts)
        for link in self._links.values():
            link.send(message)

    @contextmanager
    def blamed(self, failures: type[Exception]) -> Iterator[None]:
        """Within the context these failures of computations are reported as HostLost, if a host is lost."""
        try:
            yield
        except failures as error:
            ends_at = time.monotonic() + _BLAME_SECONDS
            while time.monotonic() < ends_at:
                for link in self._links.values():
                    if link.lost is not None:
                        raise link.lost from error
                time.sleep(0.01)
            raise

    def close(self, reason: str = "") -> None:
        """Ends the followers. Idempotent.

        Args:
            reason: why, if no operator asked for it. Without one, the followers have a moment to end first: JAX ends a
                process without a message that loses its coordinator.
        """
        self._is_closed = True
        self._listener.close()
        self.broadcast(Kind.END, reason.encode())
        ends_at = time.monotonic() + (0.0 if reason else _LAST_SECONDS)
        for link in self._links.values():
            link.close(max(0.0, ends_at - time.monotonic()))

    def _admit(self, connection: socket.socket) -> None:
        """Accepts a connection as a follower, or refuses it."""
        link = Link(connection, "a host that has not joined yet", _MAX_BYTES)
        try:
            content = link.receive(_JOIN_SECONDS).content
            if not content.startswith(MAGIC):
                raise ValueError("it is no follower")
            facts = unpack_facts(content.removeprefix(MAGIC))
            index = int(facts.pop("host_index"))
        except (HostLost, TimeoutError, ValueError, KeyError) as error:
            _LOG.warning("a connection to the port of hosts was ended: %s", error)
            link.close()
            return
        link.peer = self._name(index)
        reason = difference(self._facts, facts)
        if reason is None and not 0 < index < self._num_hosts:
            reason = f"host_index is {index} there, and the leader has hosts from 1 to {self._num_hosts - 1}"
        if reason is None and index in self._links and self._links[index].lost is None:
            reason = f"host_index {index} has joined already"
        if reason is None:
            self._links[index] = link
            return
        _LOG.warning("%s is refused: %s", link.peer, reason)
        self._refusals[index] = reason
        link.send(frame(Kind.REFUSED, reason.encode()))
        link.close()

    def _missing(self, seconds: float) -> str:
        missing = [index for index in range(1, self._num_hosts) if index not in self._links]
        reasons = [
            f"; host {index} was refused: {self._refusals[index]}" for index in missing if index in self._refusals
        ]
        return (
            f"num_hosts is {self._num_hosts}, and of them {', '.join(map(str, missing))} did not join within "
            f"{seconds:g} s{''.join(reasons)}"
        )

    def _expect(self, link: Link, kind: Kind, seconds: float | None) -> Message:
        """The next message of a follower, of one kind; raises HostLost if there is none."""
        try:
            message = link.receive(seconds)
        except TimeoutError as error:
            raise HostLost(str(error)) from error
        if message.kind is Kind.END:
            raise HostLost(f"{link.peer} has ended: {message.content.decode()}")
        if message.kind is not kind:
            raise HostLost(f"{link.peer} has sent {message.kind.name} where {kind.name} was due")
        return message

    def _name(self, index: int) -> str:
        return f"host {index} of {self._num_hosts}"
