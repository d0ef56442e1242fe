"""The group of hosts that compute one model together, as the engine of one of them uses it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax

from engine.interface.address import HostAddress
from engine.interface.config import EngineConfig
from engine.interface.types import HostLost, Progress
from engine.models.open_model import OpenModel
from engine.multihost.agreement import facts_of, facts_of_devices
from engine.multihost.follower import Follower, follow
from engine.multihost.leader import Leader
from engine.multihost.leading_runner import LeadingRunner
from engine.step.device_runner import DeviceRunner

_CONNECT_SECONDS = 60  # all hosts have joined each other when JAX begins to connect them


class Group:
    """An engine's access to the other hosts; this class is the group of a model on one host."""

    make_runner: Callable[..., DeviceRunner] = DeviceRunner  # takes the arguments of `DeviceRunner`

    def settle(self, num_pages: int) -> int:
        """The number of pages that every host has room for, from that of this host.

        Raises:
            HostLost: a host is lost.
            ValueError: the hosts' devices differ.
        """
        return num_pages

    def become_ready(self) -> None:
        """Waits until every host is ready to compute; raises HostLost."""

    def watch(self, on_lost: Callable[[HostLost], None]) -> None:
        """Calls `on_lost`, from any thread, when a host is lost."""

    def follow(self, runner: DeviceRunner) -> None:
        """Computes the leader's steps until it ends; raises HostLost, or ValueError if this host follows no other."""
        raise ValueError("num_hosts is 1, so that there is no leader to follow")

    def close(self, reason: str = "") -> None:
        """Releases the other hosts; `reason` is why, if no operator asked for it. Idempotent."""


class Leading(Group):
    """The `Group` of the host that serves."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.make_runner = partial(LeadingRunner, leader)

    def settle(self, num_pages: int) -> int:
        return self._leader.settle(facts_of_devices(), num_pages)

    def become_ready(self) -> None:
        self._leader.await_ready()

    def watch(self, on_lost: Callable[[HostLost], None]) -> None:
        self._leader.watch(on_lost)

    def follow(self, runner: DeviceRunner) -> None:
        raise ValueError("host_index is 0, which is the leader's")

    def close(self, reason: str = "") -> None:
        self._leader.close(reason)


class Following(Group):
    """The `Group` of every other host."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def settle(self, num_pages: int) -> int:
        return self._follower.settle(facts_of_devices(), num_pages)

    def become_ready(self) -> None:
        self._follower.become_ready()

    def watch(self, on_lost: Callable[[HostLost], None]) -> None:
        self._follower.watch(on_lost)

    def follow(self, runner: DeviceRunner) -> None:
        follow(self._follower, runner)

    def close(self, reason: str = "") -> None:
        self._follower.close(reason)


def open_group(config: EngineConfig, opened: OpenModel, progress: Progress) -> Group:
    """Joins the other hosts, and makes JAX know the devices of all of them. Blocks until all are there.

    Must come before anything that opens JAX's devices.

    Raises:
        HostLost: a host was lost meanwhile.
        ValueError: the hosts differ, or do not all come; or this process has opened its devices already.
    """
    if config.num_hosts == 1 or config.coordinator is None:
        return Group()
    address = HostAddress.parse(config.coordinator)
    facts = facts_of(config, opened)
    group: Group
    leader: Leader | None = None
    if config.host_index == 0:
        leader = Leader(address, config.num_hosts, facts)
        group = Leading(leader)
    else:
        progress("wait for hosts", 0, 0)
        group = Following(Follower(address, config.host_index, config.num_hosts, facts))
    try:
        if leader is not None:
            leader.gather(progress)
        _connect(config, address)
    except BaseException as error:
        group.close(str(error) or repr(error))
        raise
    return group


def _connect(config: EngineConfig, address: HostAddress) -> None:
    """Connects JAX's runtimes; raises ValueError if that fails."""
    # Only CPUs read it; other devices bring their own way to add up over hosts.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would take SIGTERM away from the server, which drains then.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            str(address), config.num_hosts, config.host_index, cluster_detection_method="deactivate",
            initialization_timeout=_CONNECT_SECONDS,
            coordinator_bind_address=str(address) if config.host_index == 0 else None,
        )  # fmt: skip
    except RuntimeError as error:
        raise ValueError(f"coordinator is {address}, and the hosts cannot be connected: {error}") from error
