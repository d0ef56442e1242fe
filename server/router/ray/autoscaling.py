"""How many replicas there should be, from the prompts that wait in them. Ray Serve's controller asks `ScaleByQueue`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# Of its slots, so many may run in a replica that is left when others go; more of them would soon have a queue again.
FULL_ENOUGH = 0.8

QUEUED_TOKENS = "queued_prompt_tokens"
BUSY_SLOTS = "busy_slots"


class ReplicaLoad(NamedTuple):
    """What one replica has to do."""

    queued_tokens: float  # of prompts that have not begun
    busy_slots: float  # running requests as a share of those that can run at once


def replicas_wanted(loads: Iterable[ReplicaLoad], num_replicas: int, target_queued_tokens: int) -> int:
    """How many replicas the present load wants, before any bound.

    More are wanted where the prompts that wait would be more than the target in each. An empty queue alone is no reason
    to have fewer, because it is empty also where each replica has exactly as much to do as it can. Fewer are enough
    where they have slots for the requests that run.

    Args:
        loads: of the replicas that have said theirs; those that are starting have none.
        num_replicas: how many there are or are being started.
        target_queued_tokens: waiting prompt tokens in each replica.
    """
    known = list(loads)
    by_queue = math.ceil(sum(load.queued_tokens for load in known) / target_queued_tokens)
    by_slots = math.ceil(sum(load.busy_slots for load in known) / FULL_ENOUGH)
    return max(by_queue, min(by_slots, num_replicas))


class ScaleByQueue:
    """Ray Serve's form of an autoscaling policy: called with the state of the deployment, in the controller."""

    def __init__(self, target_queued_tokens: int) -> None:
        self._target = target_queued_tokens

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """How many replicas are wanted, and no state; Ray applies delays and bounds to the number.

        Args:
            context: Ray's `AutoscalingContext`, with what the replicas' `record_autoscaling_stats` gave.
        """
        metrics: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        queued, busy = metrics.get(QUEUED_TOKENS, {}), metrics.get(BUSY_SLOTS, {})
        loads = [ReplicaLoad(tokens, busy.get(replica, 0.0)) for replica, tokens in queued.items()]
        return replicas_wanted(loads, context.target_num_replicas, self._target), {}
