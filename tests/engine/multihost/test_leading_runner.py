"""The hosts of a model sleep together and wake together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.serving.server_process import free_port
from engine.interface.address import HostAddress
from engine.multihost.follower import Follower, follow
from engine.multihost.leader import Leader
from engine.multihost.leading_runner import LeadingRunner
from engine.step.device_runner import DeviceRunner
from sampling.processors.logits_processor import StateShape
from tests.patience import PATIENCE_S

KEY = "a-key-of-all-hosts"


class Device(DeviceRunner):
    """A device whose pages are a word; it computes nothing."""

    def __init__(self) -> None:
        self.max_pages_per_request = 1
        self.state_shape = StateShape(1, 8, 8)
        self.error: Exception | None = None  # what the next wake fails with
        self.states: list[str] = ["awake"]  # that it has been in

    def sleep(self, *, drop_weights: bool) -> None:
        self.states.append("asleep")

    def wake(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.states.append("awake")


class LeadingDevice(LeadingRunner, Device):
    """That of the host that serves."""


def test_where_the_leader_has_no_memory_to_wake_its_followers_sleep_on() -> None:
    address = HostAddress("127.0.0.1", free_port() - 1)
    leader = Leader(address, 2, {}, KEY)
    ours, theirs = LeadingDevice(leader), Device()
    with ThreadPoolExecutor() as threads:
        try:
            joining = threads.submit(Follower, address, 1, 2, {}, KEY, PATIENCE_S)
            leader.gather(lambda *_: None, PATIENCE_S)
            follower = joining.result(PATIENCE_S)
            following = threads.submit(follow, follower, theirs)
            ours.sleep(drop_weights=False)
            ours.error = MemoryError("no room")
            with pytest.raises(MemoryError, match="no room"):
                ours.wake()
            ours.wake()
            ours.sleep(drop_weights=False)
        finally:
            leader.close()
        following.result(PATIENCE_S)
        follower.close()
    assert ours.states == theirs.states == ["awake", "asleep", "awake", "asleep"]
