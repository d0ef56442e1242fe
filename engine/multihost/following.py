"""A follower's loop: it runs the programs of every step that its leader tells it, and knows no requests."""

from __future__ import annotations

import jax

from engine.multihost.follower import Follower
from engine.multihost.messages import Kind
from engine.multihost.step_frame import StepFormat
from engine.schedule.step_plan import StepPlan
from engine.step.device_runner import DeviceRunner
from engine.step.runner import PendingStep


def follow(follower: Follower, runner: DeviceRunner) -> None:
    """Computes until the leader ends; returns then. Blocks.

    A step is enqueued before the one before it is waited for, as the leader does it. The wait only bounds what is in
    flight, and lets a failed computation end this host; nobody reads the tokens here.

    Raises:
        HostLost: the leader is lost, or has failed.
        ValueError: what it says cannot be read.
        jax.errors.JaxRuntimeError: a computation has failed.
    """
    step_format = StepFormat(runner.max_pages_per_request, runner.state_shape)
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
