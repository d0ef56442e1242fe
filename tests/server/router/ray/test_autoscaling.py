"""How many replicas a load wants."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from server.router.ray.autoscaling import BUSY_SLOTS, QUEUED_TOKENS, ReplicaLoad, ScaleByQueue, replicas_wanted

IDLE, BUSY = ReplicaLoad(0, 0), ReplicaLoad(0, 1)


@pytest.mark.parametrize(
    ("loads", "num_replicas", "wanted"),
    [
        ([], 1, 0),
        ([IDLE, IDLE, IDLE], 3, 0),
        ([BUSY], 1, 1),  # full slots without a queue are no reason to have more
        ([BUSY, BUSY, BUSY], 3, 3),  # nor is an empty queue to have fewer
        ([BUSY, IDLE, IDLE], 3, 2),
        ([ReplicaLoad(0, 0.4), ReplicaLoad(0, 0.4)], 2, 1),
        ([ReplicaLoad(0, 0.5), ReplicaLoad(0, 0.5)], 2, 2),
        ([ReplicaLoad(1000, 1)], 1, 1),  # the target itself is no reason either
        ([ReplicaLoad(1001, 1)], 1, 2),
        ([ReplicaLoad(1500, 1), ReplicaLoad(2500, 1)], 2, 4),
        ([ReplicaLoad(5000, 1)], 2, 5),  # the second is starting
        ([ReplicaLoad(500, 1), BUSY], 2, 2),
    ],
)
def test_the_queue_asks_for_more_and_the_slots_keep_what_is_there(
    loads: list[ReplicaLoad], num_replicas: int, wanted: int
) -> None:
    assert replicas_wanted(loads, num_replicas, 1000) == wanted


def test_ray_calls_it_with_what_the_replicas_have_told() -> None:
    context = SimpleNamespace(
        target_num_replicas=2,
        aggregated_metrics={QUEUED_TOKENS: {"a": 3000.0, "b": 500.0}, BUSY_SLOTS: {"a": 1.0, "b": 1.0}},
    )
    assert ScaleByQueue(1000)(context) == (4, {})


def test_before_a_replica_has_told_anything_none_is_wanted() -> None:
    """Ray's own bound keeps the fewest that the user wants."""
    assert ScaleByQueue(1000)(SimpleNamespace(target_num_replicas=1, aggregated_metrics=None)) == (0, {})
