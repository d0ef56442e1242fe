"""The hosts of a model sleep together and wake together."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmarks.serving.server_process import free_port
from engine.adapters.adapter_weights import AdapterWeights, LeafPair, weights_of
from engine.interface.address import HostAddress
from engine.multihost.adapter_frames import AdapterFrames
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
        self.loaded: list[tuple[int, AdapterWeights]] = []

    def load_adapter(self, slot: int, weights: AdapterWeights) -> None:
        self.loaded.append((slot, weights))

    def sleep(self, *, drop_weights: bool) -> None:
        self.states.append("asleep")

    def wake(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.states.append("awake")


class LeadingDevice(LeadingRunner, Device):
    """That of the host that serves."""


@pytest.fixture
def hosts() -> Iterator[tuple[LeadingDevice, Device]]:
    """The devices of a leader and of a follower, which has done what it was told once the test ends them."""
    address = HostAddress("127.0.0.1", free_port() - 1)
    leader = Leader(address, 2, {}, KEY)
    ours, theirs = LeadingDevice(leader), Device()
    with ThreadPoolExecutor() as threads:
        try:
            joining = threads.submit(Follower, address, 1, 2, {}, KEY, PATIENCE_S)
            leader.gather(lambda *_: None, PATIENCE_S)
            follower = joining.result(PATIENCE_S)
            following = threads.submit(follow, follower, theirs)
            yield ours, theirs
        finally:
            leader.close()
        following.result(PATIENCE_S)
        follower.close()


def test_where_the_leader_has_no_memory_to_wake_its_followers_sleep_on(hosts: tuple[LeadingDevice, Device]) -> None:
    ours, theirs = hosts
    ours.sleep(drop_weights=False)
    ours.error = MemoryError("no room")
    with pytest.raises(MemoryError, match="no room"):
        ours.wake()
    ours.wake()
    ours.sleep(drop_weights=False)
    wait_for(lambda: len(theirs.states) == 4)
    assert ours.states == theirs.states == ["awake", "asleep", "awake", "asleep"]


def test_followers_get_the_adapters_of_the_leader(hosts: tuple[LeadingDevice, Device]) -> None:
    """Without any file of theirs, one after the other."""
    ours, theirs = hosts
    random = np.random.default_rng(0)

    def pair(outputs: int) -> LeafPair:
        return LeafPair(*(random.random(size, np.float32) for size in ((3, 16, 8), (3, 8, outputs))), rank=5)

    for slot, names in ((1, ("qkv", "down")), (0, ("qkv",)), (2, ())):
        ours.load_adapter(slot, weights_of({name: pair(len(name)) for name in names}))
    wait_for(lambda: len(theirs.loaded) == 3)
    for (slot, weights), (their_slot, their_weights) in zip(ours.loaded, theirs.loaded, strict=True):
        assert (their_slot, their_weights.digest) == (slot, weights.digest)
        assert weights_of(their_weights.pairs).digest == weights.digest


@pytest.mark.parametrize("content", [b"short", bytes(32), bytes(16) + b"\1" + bytes(15)])
def test_a_layer_of_other_sizes_than_it_says_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="a layer of an adapter"):
        AdapterFrames().add_layer(content)


def test_layers_that_do_not_fit_each_other_and_a_slot_that_is_cut_off_are_refused() -> None:
    frames = AdapterFrames()
    frames.add_layer(struct.pack("<8I", 1, 1, 0, 1, 1, 1, 1, 1) + b"q" + bytes(8))
    with pytest.raises(ValueError, match="other sizes than the one before it"):
        frames.add_layer(struct.pack("<8I", 1, 3, 2, 1, 1, 1, 1, 1) + b"q" + bytes(8))
    with pytest.raises(ValueError, match="cut off"):
        frames.finish(b"\1")


def wait_for(is_done: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not is_done() and time.monotonic() < ends_at:
        time.sleep(0.005)
