"""The memory node of each of several servers on one machine."""

import os
from pathlib import Path

_SYSTEM = Path("/sys/devices/system/node")  # of Linux


def processors_of_each(num_replicas: int, system: Path = _SYSTEM) -> list[frozenset[int] | None]:
    """The processors to which each server is kept: those of one node, nodes in turn; None: any.

    Servers are kept to nodes where there are several and each of them gets as many servers.
    """
    nodes = _nodes(system)
    if len(nodes) < 2 or num_replicas % len(nodes):
        return [None] * num_replicas
    return [nodes[index % len(nodes)] for index in range(num_replicas)]


def _nodes(system: Path) -> list[frozenset[int]]:
    """The processors of each node that this process may use, of nodes with any; none where that is not known."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    own = os.sched_getaffinity(0)
    try:
        lists = [
            (node / "cpulist").read_text(encoding="ascii")
            for node in sorted(system.glob("node[0-9]*"), key=lambda node: int(node.name.removeprefix("node")))
        ]
        nodes = [frozenset(own.intersection(_numbers(text))) for text in lists]
    except (OSError, ValueError):
        return []
    return [node for node in nodes if node]


def _numbers(text: str) -> set[int]:
    """Those of a list such as "0-3,8"; raises ValueError."""
    numbers = set[int]()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers
