"""Cores and memory nodes of machines of many kinds, and which node each thread of a pool is of."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.backends.native.nodes.machines import write_machine
from tests.engine.backends.native.runtime.harness import build

MOST_CORES = 1024

# `cores` writes a node and a number of processors for each core and returns how many there are; `divide` writes node,
# first thread, end and the number of processors of each node that has threads.
HARNESS = """
#include "nodes/thread_nodes.h"

using namespace eagre;

static Topology topology_of(const char* folder, const int32_t* processors, int count) {
  return read_topology(folder, std::vector<int>(processors, processors + count));
}

extern "C" int cores(const char* folder, const int32_t* processors, int count, int32_t* found) {
  const Topology topology = topology_of(folder, processors, count);
  for (const Core& core : topology) {
    *found++ = core.node;
    *found++ = core.processors[0];
    *found++ = static_cast<int32_t>(core.processors.size());
  }
  return static_cast<int>(topology.size());
}

extern "C" int wanted(const char* text) { return wanted_threads(text); }

extern "C" int divide(int num_threads, const int32_t* nodes, int num_cores, int32_t* found) {
  Topology topology;
  for (int i = 0; i < num_cores; ++i) topology.push_back({nodes[i], {i}});
  const ThreadNodes threads(num_threads, topology);
  for (const ThreadNodes::Node& node : threads.nodes()) {
    *found++ = node.number;
    *found++ = node.first;
    *found++ = node.end;
    *found++ = static_cast<int32_t>(node.processors.size());
  }
  return static_cast<int>(threads.nodes().size());
}
"""

SOURCES = "nodes/topology.cc", "nodes/thread_nodes.cc"
SIBLINGS = {processor: f"{processor % 4},{processor % 4 + 4}" for processor in range(8)}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(HARNESS, tmp_path_factory.mktemp("nodes"), *SOURCES)


@pytest.mark.parametrize(
    ("nodes", "siblings", "processors", "expected"),
    [
        pytest.param({0: "0-3"}, {}, range(4), [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 1)], id="one node"),
        pytest.param(
            {0: "0-1,4-5", 1: "2-3,6-7"}, SIBLINGS, range(8), [(0, 0, 2), (0, 1, 2), (1, 2, 2), (1, 3, 2)],
            id="two nodes with two threads a core",
        ),
        pytest.param(
            {0: "0-1,4-5", 1: "2-3,6-7"}, SIBLINGS, [1, 3, 5, 6], [(0, 1, 2), (1, 3, 1), (1, 6, 1)],
            id="a container with parts of both",
        ),
        pytest.param({0: "0-1,4-5", 1: "2-3,6-7"}, SIBLINGS, [2, 3], [(1, 2, 1), (1, 3, 1)], id="a container in one"),
        pytest.param({2: "0,2", 5: "1,3"}, {}, range(4), [(2, 0, 1), (2, 2, 1), (5, 1, 1), (5, 3, 1)], id="gaps"),
        pytest.param({0: "0", 1: "1", 2: ""}, {}, range(2), [(0, 0, 1), (1, 1, 1)], id="a node of memory alone"),
        pytest.param({0: "0,3", 1: "4"}, {}, [0, 3, 4], [(0, 0, 1), (0, 3, 1), (1, 4, 1)], id="processors off"),
        pytest.param(
            {0: "0-5"}, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4", 5: "5"}, range(6),
            [(0, 0, 2), (0, 2, 2), (0, 4, 1), (0, 5, 1)], id="cores of two kinds",
        ),
        pytest.param({}, {}, [0, 7], [(0, 0, 1), (0, 7, 1)], id="a system that tells nothing"),
        pytest.param({0: "0-x", 1: "none", 3: "1"}, {}, [0, 1], [(0, 0, 1), (3, 1, 1)], id="a list of another form"),
    ],
)  # fmt: skip
def test_cores_are_in_the_order_of_their_nodes(
    library: ctypes.CDLL, tmp_path: Path, nodes: dict[int, str], siblings: dict[int, str],
    processors: Sequence[int], expected: list[tuple[int, int, int]],
) -> None:  # fmt: skip
    folder = write_machine(tmp_path / "system", nodes, siblings)
    assert cores(library, folder, processors) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1), ("16", 16), ("1024", 1024), ("1025", 1024), ("4294967297", 1024), ("9" * 40, 1024),
        ("0", 0), ("-1", 0), ("", 0), ("none", 0), ("4 threads", 0), ("2.5", 0), ("-" + "9" * 40, 0),
    ],
)  # fmt: skip
def test_threads_that_are_asked_for(library: ctypes.CDLL, text: str, expected: int) -> None:
    assert library.wanted(text.encode()) == expected


def test_a_library_that_brings_its_own_of_cpp_reads_nodes_too(tmp_path: Path) -> None:
    """As those of wheels do, beside XLA, which has another one: streams of C++ then read no numbers."""
    import jax  # noqa: F401

    try:
        library = build(HARNESS, tmp_path, *SOURCES, flags=("-static-libstdc++", "-static-libgcc"))
    except subprocess.CalledProcessError:
        pytest.skip("this system has no static library of C++")
    folder = write_machine(tmp_path / "system", {0: "0", 1: "1"})
    assert cores(library, folder, [0, 1]) == [(0, 0, 1), (1, 1, 1)]


def test_a_missing_folder_is_one_node(library: ctypes.CDLL, tmp_path: Path) -> None:
    assert cores(library, tmp_path / "nowhere", [0, 1]) == [(0, 0, 1), (0, 1, 1)]


@pytest.mark.parametrize(
    ("num_threads", "cores_of_nodes", "expected"),
    [
        (4, [4], [(0, 0, 4)]),
        (8, [4, 4], [(0, 0, 4), (1, 4, 8)]),
        (64, [8] * 8, [(node, 8 * node, 8 * node + 8) for node in range(8)]),
        (6, [4, 2], [(0, 0, 4), (1, 4, 6)]),  # a container with a part of the second one
        (5, [4, 4], [(0, 0, 3), (1, 3, 5)]),
        (3, [2] * 8, [(0, 0, 1), (2, 1, 2), (5, 2, 3)]),  # fewer threads than nodes
        (1, [4, 4], [(0, 0, 1)]),
        (7, [1, 1], [(0, 0, 4), (1, 4, 7)]),
        (3, [], [(0, 0, 3)]),
    ],
)
def test_each_node_has_its_share_of_the_threads(
    library: ctypes.CDLL, num_threads: int, cores_of_nodes: list[int], expected: list[tuple[int, int, int]]
) -> None:
    assert [node[:3] for node in divide(library, num_threads, cores_of_nodes)] == expected


@given(st.integers(1, 300), st.lists(st.integers(0, 40), max_size=8))
def test_neighbouring_threads_are_of_one_node_or_of_the_next(
    library: ctypes.CDLL, num_threads: int, cores_of_nodes: list[int]
) -> None:
    nodes = divide(library, num_threads, cores_of_nodes)
    assert (nodes[0][1], nodes[-1][2]) == (0, num_threads)
    assert all(before[2] == after[1] and before[0] < after[0] for before, after in pairwise(nodes))
    for number, first, end, num_processors in nodes:
        of_node, every = (cores_of_nodes[number], sum(cores_of_nodes)) if sum(cores_of_nodes) else (0, 1)
        assert num_processors == of_node
        assert end > first
        assert not of_node or abs((end - first) - num_threads * of_node / every) < 1


def cores(library: ctypes.CDLL, folder: Path, processors: Sequence[int]) -> list[tuple[int, int, int]]:
    """Node, first processor and number of processors of each core."""
    found = (ctypes.c_int32 * (3 * MOST_CORES))()
    given_processors = (ctypes.c_int32 * len(processors))(*processors)
    count = library.cores(str(folder).encode(), given_processors, len(processors), found)
    return [tuple(found[3 * i : 3 * i + 3]) for i in range(count)]


def divide(library: ctypes.CDLL, num_threads: int, cores_of_nodes: list[int]) -> list[tuple[int, int, int, int]]:
    """Node, first thread, end and number of processors of each node with threads."""
    nodes = [node for node, count in enumerate(cores_of_nodes) for _ in range(count)]
    found = (ctypes.c_int32 * (4 * MOST_CORES))()
    count = library.divide(num_threads, (ctypes.c_int32 * max(1, len(nodes)))(*nodes), len(nodes), found)
    return [tuple(found[4 * i : 4 * i + 4]) for i in range(count)]
