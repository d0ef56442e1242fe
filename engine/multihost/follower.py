"""A follower: it joins its leader, agrees with it on what all allocate, and computes every step that it sends."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Mapping

import jax

from engine.interface.address import HostAddress
from engine.interface.types import HostLost
from engine.multihost.adapter_frames import AdapterFrames
from engine.multihost.leader import GATHER_SECONDS, SETTLE_SECONDS
from engine.multihost.link import PATIENCE_SECONDS, Link
from engine.multihost.messages import FOLLOWER, LEADER, PROTOCOL, Kind, Message, frame, pack_facts
from engine.multihost.step_frame import StepFormat
from engine.peer_transport.handshake import ProofRefused, UntrustedPeer, introduce
from engine.schedule.step_plan import StepPlan
from engine.step.device_runner import DeviceRunner
from engine.step.runner import PendingStep

_RETRY_SECONDS = 0.2
_MAX_BYTES = 1 << 30  # of a step
_LOG = logging.getLogger(__name__)


class Follower:
    """The connection of any host but the first to the leader."""

    def __init__(
        self, address: HostAddress, index: int, num_hosts: int, facts: Mapping[str, str], key: str,
        seconds: float = GATHER_SECONDS,
    ) -> None:  # fmt: skip
        """Joins, and waits until all others have.

        Args:
            address: the coordinator's; the leader listens at the next port.
            facts: what must agree on all hosts.
            key: the secret of all hosts.
            seconds: how long to try, and then to wait for the others.

        Raises:
            ValueError: the leader refuses this host, or cannot be reached.
            HostLost: the leader has ended.
        """
        leader = f"the leader (host 0 of {num_hosts})"
        connection, session_key = _connected(address, key.encode(), seconds)
        self._link = Link(connection, leader, _MAX_BYTES, session_key, FOLLOWER, LEADER)
        self._link.send(frame(Kind.JOIN, pack_facts({**facts, "host_index": str(index)})))
        try:
            self._expect(Kind.ACCEPTED, seconds)
        except BaseException:
            self._link.close()
            raise

    def settle(self, facts: Mapping[str, str], num_pages: int) -> int:
        """As `Leader.settle`."""
        self._link.send(frame(Kind.OFFER, pack_facts({**facts, "num_pages": str(num_pages)})))
        return int(self._expect(Kind.SETTLED, SETTLE_SECONDS).content)

    def become_ready(self) -> None:
        """Reports that this host has compiled its programs, and waits until all have; raises HostLost."""
        self._link.send(frame(Kind.READY))
        self._expect(Kind.BEGIN, None)
        self._link.patience = PATIENCE_SECONDS

    def watch(self, on_lost: Callable[[HostLost], None]) -> None:
        """Calls `on_lost`, from any thread, when the leader is lost."""
        self._link.watch(on_lost)

    def receive(self) -> Message:
        """The next message of the leader; raises HostLost."""
        return self._link.receive()

    def ended(self, reason: bytes) -> HostLost:
        """The error of a leader that has ended for a reason."""
        return HostLost(f"{self._link.peer} has ended: {reason.decode()}")

    def close(self, reason: str = "") -> None:
        """Ends the connection; `reason` is why, if the leader has not asked for it."""
        if reason:
            self._link.send(frame(Kind.END, reason.encode()))
        self._link.close()

    def _expect(self, kind: Kind, seconds: float | None) -> Message:
        """The next message, of one kind; raises ValueError if the leader refuses this host, else HostLost."""
        try:
            message = self._link.receive(seconds)
        except TimeoutError as error:
            raise HostLost(str(error)) from error
        match message.kind:
            case Kind.REFUSED:
                raise ValueError(f"{self._link.peer} refuses this host: {message.content.decode()}")
            case Kind.END:
                raise self.ended(message.content)
            case other if other is not kind:
                raise HostLost(f"{self._link.peer} has sent {other.name} where {kind.name} was due")
        return message


def _connected(address: HostAddress, key: bytes, seconds: float) -> tuple[socket.socket, bytes]:
    """A connection to the leader, and the key of its session.

    A leader that ends the handshake may have another key or no place for the moment, so that is tried again too.

    Raises:
        ValueError: there was none in time, or who listens there does not have the key.
    """
    ends_at = time.monotonic() + seconds
    has_warned = False
    while True:
        try:
            connection = socket.create_connection((address.host, address.plan_port), timeout=seconds)
            with contextlib.ExitStack() as stack:
                stack.callback(connection.close)
                # Before the leader of the same machine listens, the system may choose its very port for this end,
                # which reaches itself then and keeps the leader from listening.
                if connection.getsockname() != connection.getpeername():
                    session_key = introduce(connection, PROTOCOL, key)
                    stack.pop_all()
                    return connection, session_key
        except OSError as error:
            if isinstance(error, UntrustedPeer):
                raise ValueError(
                    f"coordinator is {address}, and what listens at its port {address.plan_port} is no leader with "
                    f"this coordinator_key: {error}"
                ) from error
            if isinstance(error, ProofRefused) and not has_warned:
                has_warned = True
                _LOG.warning("the leader at %s refuses the proof of coordinator_key; it is tried again", address)
            if time.monotonic() > ends_at:
                raise ValueError(
                    f"coordinator is {address}, and its port {address.plan_port} could not be reached within "
                    f"{seconds:g} s: {error}"
                ) from error
        time.sleep(_RETRY_SECONDS)


def follow(follower: Follower, runner: DeviceRunner) -> None:
    """Computes the leader's steps until it ends. Blocks. A follower knows no requests.

    A step is enqueued before the one before it is waited for, as on the leader. The wait only bounds what is in flight,
    and lets a failed computation end this host; the tokens are not used here.

    Raises:
        HostLost: the leader is lost, or has failed.
        ValueError: a message cannot be read.
        jax.errors.JaxRuntimeError: a computation has failed.
    """
    step_format = StepFormat(runner.max_pages_per_request, runner.state_shape)
    adapters = AdapterFrames()
    pending: PendingStep | None = None
    while True:
        kind, content = follower.receive()
        match kind:
            case Kind.STEP:
                before = pending
                pending = runner.launch(StepPlan(), *step_format.unpack(content))
                _wait(before)
            case Kind.MASKS:
                if pending is None or not pending.inputs.awaits_masks:
                    raise ValueError("the leader has sent masks to a step that awaits none")
                pending.inputs, masks = step_format.unpack_masks(pending.inputs, content)
                runner.sample(pending, masks)
            case Kind.ADAPTER_LAYER:
                adapters.add_layer(content)
            case Kind.LOAD_ADAPTER:
                _wait(pending)
                runner.load_adapter(*adapters.finish(content))
            case Kind.SLEEP:
                _wait(pending)
                runner.sleep(drop_weights=False)
            case Kind.WAKE:
                runner.wake()
            case Kind.END:
                if content:
                    raise follower.ended(content)
                return
            case other:
                raise ValueError(f"the leader has sent {other.name}, which is not for a follower that computes")


def _wait(pending: PendingStep | None) -> None:
    if pending is not None and pending.out is not None:
        jax.block_until_ready(pending.out)
