"""How a router chooses a replica."""

import random
from collections.abc import Callable, Sequence
from itertools import count

from benchmarks.fleet.arrivals import Arrival
from benchmarks.fleet.simulated_replica import SimulatedReplica

Policy = Callable[[Arrival, Sequence[SimulatedReplica]], int]  # the index of the replica

MOST_AHEAD = 8  # requests that a replica may have more than the least loaded one and still be chosen for its prefix


def random_policy() -> Policy:
    draw = random.Random(0)
    return lambda _, replicas: draw.randrange(len(replicas))


def round_robin() -> Policy:
    turns = count()
    return lambda _, replicas: next(turns) % len(replicas)


def least_queued() -> Policy:
    """The replica with the fewest unfinished requests; of equal ones each in turn."""
    turns = count()

    def choose(_: Arrival, replicas: Sequence[SimulatedReplica]) -> int:
        first = next(turns)
        order = [(first + step) % len(replicas) for step in range(len(replicas))]
        return min(order, key=lambda index: replicas[index].num_unfinished)

    return choose


def prefix_guessed() -> Policy:
    """By what the router itself has sent where: the least loaded of the replicas that have had the prefix.

    If that one has many more requests than the least loaded of all, the latter gets the request, as in cache-aware
    routers.
    """
    fallback = least_queued()
    sent: dict[str, set[int]] = {}

    def choose(arrival: Arrival, replicas: Sequence[SimulatedReplica]) -> int:
        chosen = _of_those(sorted(sent.get(arrival.prefix, ())), arrival, replicas, fallback)
        sent.setdefault(arrival.prefix, set()).add(chosen)
        return chosen

    return choose


def prefix_by_events() -> Policy:
    """As `prefix_guessed`, but by the replicas' events (`--kv-events`), so evicted prefixes are known."""
    fallback = least_queued()

    def choose(arrival: Arrival, replicas: Sequence[SimulatedReplica]) -> int:
        known = [index for index, replica in enumerate(replicas) if replica.remembers(arrival.prefix)]
        return _of_those(known, arrival, replicas, fallback)

    return choose


def _of_those(known: Sequence[int], arrival: Arrival, replicas: Sequence[SimulatedReplica], fallback: Policy) -> int:
    least = fallback(arrival, replicas)
    if not known:
        return least
    best = min(known, key=lambda index: replicas[index].num_unfinished)
    return best if replicas[best].num_unfinished <= replicas[least].num_unfinished + MOST_AHEAD else least


POLICIES: dict[str, Callable[[], Policy]] = {
    "random": random_policy,
    "round robin": round_robin,
    "least queued": least_queued,
    "prefix, guessed": prefix_guessed,
    "prefix, by events": prefix_by_events,
}
