"""The autoscaling policy of `eagre deploy`: the number of replicas by their queued prompt tokens and busy slots."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# Share of a replica's slots that may be busy after a downscale; with more it would soon have a queue again.
FULL_ENOUGH = 0.8

QUEUED_TOKENS = "queued_prompt_tokens"
BUSY_SLOTS = "busy_slots"


class ReplicaLoad(NamedTuple):
    """The load of one replica."""

    queued_tokens: float  # of prompts that have not begun
    busy_slots: float  # running requests as a share of those that can run at once


def replicas_wanted(loads: Iterable[ReplicaLoad], num_replicas: int, target_queued_tokens: int) -> int:
    """The number of replicas for the present load, before any bound.

    More are wanted where the queued tokens exceed the target in each. Fewer are enough where they have slots for the
    running requests; a queue is empty also where each replica is exactly busy. A replica that starts has no load.
    """
    known = list(loads)
    by_queue = math.ceil(sum(load.queued_tokens for load in known) / target_queued_tokens)
    by_slots = math.ceil(sum(load.busy_slots for load in known) / FULL_ENOUGH)
    return max(by_queue, min(by_slots, num_replicas))


class ScaleByQueue:
    """An autoscaling policy in Ray Serve's form, which its controller calls."""

    def __init__(self, target_queued_tokens: int) -> None:
        self._target = target_queued_tokens

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas, to which Ray applies delays and bounds, by the recorded stats of `context`."""
        metrics: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
        queued, busy = metrics.get(QUEUED_TOKENS, {}), metrics.get(BUSY_SLOTS, {})
        loads = [ReplicaLoad(tokens, busy.get(replica, 0.0)) for replica, tokens in queued.items()]
        return replicas_wanted(loads, context.target_num_replicas, self._target), {}
