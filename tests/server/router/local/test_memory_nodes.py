"""Servers of one machine are kept to its memory nodes, of machines that are made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.router.local.memory_nodes import processors_of_each

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux tells of memory nodes")


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def write(folder: Path, **nodes: str) -> Path:
    for name, processors in nodes.items():
        (folder / name).mkdir()
        (folder / name / "cpulist").write_text(processors + "\n")
    return folder


@pytest.mark.parametrize(
    ("nodes", "num_replicas", "expected"),
    [
        ({"node0": "0-3", "node1": "4-7"}, 2, [{0, 1, 2, 3}, {4, 5, 6, 7}]),
        ({"node0": "0-1,4-5", "node1": "2-3,6-7"}, 4, [{0, 1, 4, 5}, {2, 3, 6, 7}] * 2),
        ({"node0": "0-1", "node2": "2", "node10": "3-7"}, 3, [{0, 1}, {2}, {3, 4, 5, 6, 7}]),
        ({"node0": "0-7,16-23", "node1": "8-15"}, 2, [None, None]),  # a container with one node
        ({"node0": "0-3", "node1": "4-11", "node2": ""}, 2, [{0, 1, 2, 3}, {4, 5, 6, 7}]),  # one is of memory alone
        ({"node0": "0-3", "node1": "4-7"}, 3, [None] * 3),
        ({"node0": "0-7"}, 2, [None, None]),
        ({}, 2, [None, None]),
        ({"node0": "0-x", "node1": "4-7"}, 2, [None, None]),
    ],
)
def test_each_node_gets_as_many_servers_or_none_is_kept_to_one(
    tmp_path: Path, nodes: dict[str, str], num_replicas: int, expected: list[set[int] | None]
) -> None:
    assert processors_of_each(num_replicas, write(tmp_path, **nodes)) == expected
