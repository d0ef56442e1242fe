"""The leader's runner: it sends each step to the followers before it enqueues it on its own devices."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from engine.adapters.adapter_weights import AdapterWeights
from engine.multihost import adapter_frames
from engine.multihost.leader import Leader
from engine.multihost.messages import Kind
from engine.multihost.step_frame import StepFormat
from engine.schedule.step_plan import StepPlan, StepResult
from engine.step.device_runner import DeviceRunner
from engine.step.inputs import FeatureWrite, StepInputs
from engine.step.runner import PendingStep

_FAILURE = jax.errors.JaxRuntimeError  # of a computation; the loss of a host is one


class LeadingRunner(DeviceRunner):
    """A `DeviceRunner` whose programs run on several hosts at once.

    The frame of a step leaves before the step's own programs are enqueued, so a follower has the next step's inputs
    while its devices still compute the last one. A broadcast by the devices would come behind that one.
    """

    def __init__(self, leader: Leader, *args: Any, **options: Any) -> None:
        """Takes the arguments of `DeviceRunner` after the leader."""
        super().__init__(*args, **options)
        self._leader = leader
        self._format = StepFormat(self.max_pages_per_request, self.state_shape)

    def launch(self, plan: StepPlan, inputs: StepInputs, writes: Sequence[FeatureWrite]) -> PendingStep:
        """As `DeviceRunner.launch`, on all hosts."""
        self._leader.broadcast(Kind.STEP, *self._format.pack(inputs, writes))
        with self._leader.blamed(_FAILURE):
            return super().launch(plan, inputs, writes)

    def sample(self, pending: PendingStep, masks: np.ndarray | jax.Array) -> None:
        """As `DeviceRunner.sample`, on all hosts; followers sample on their own where a step awaits no masks."""
        if pending.inputs.awaits_masks:
            self._leader.broadcast(Kind.MASKS, *self._format.pack_masks(pending.inputs, np.asarray(masks)))
        with self._leader.blamed(_FAILURE):
            super().sample(pending, masks)

    def result(self, pending: PendingStep) -> StepResult:
        """As `DeviceRunner.result`; raises HostLost if the step has failed because a host is lost."""
        with self._leader.blamed(_FAILURE):
            return super().result(pending)

    def load_adapter(self, slot: int, weights: AdapterWeights) -> None:
        """As `DeviceRunner.load_adapter`, on all hosts."""
        for kind, parts in adapter_frames.pack(slot, weights):
            self._leader.broadcast(kind, *parts)
        super().load_adapter(slot, weights)

    def sleep(self, *, drop_weights: bool) -> None:
        """As `DeviceRunner.sleep`, on all hosts; the weights stay."""
        assert not drop_weights, "weights of which each host has a share cannot be moved"
        self._leader.broadcast(Kind.SLEEP)
        super().sleep(drop_weights=False)

    def wake(self) -> None:
        """As `DeviceRunner.wake`, on all hosts. They stay asleep where this one has no memory; others are lost."""
        super().wake()  # first: it needs nothing of the other hosts
        self._leader.broadcast(Kind.WAKE)
