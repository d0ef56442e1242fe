"""Memory is taken from the nodes of the threads that read it, or from all in turn where any thread does."""

from __future__ import annotations

import ctypes
import errno
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.backends.native.runtime.harness import build

# Machines of so many cores a node, of processors that are not there: threads are then kept nowhere.
HARNESS = """
#include "nodes/node_memory.h"

#include <sys/syscall.h>
#include <unistd.h>

using namespace eagre;

static ThreadNodes threads_of(int num_threads, int num_nodes) {
  Topology topology;
  for (int node = 0; node < num_nodes; ++node) topology.push_back({node, {}});
  return ThreadNodes(num_threads, topology);
}

extern "C" int ranges(int num_threads, int num_nodes, int node, const FreshTiles* tiles, int64_t* found) {
  const ThreadNodes threads = threads_of(num_threads, num_nodes);
  const auto bytes = bytes_of(threads, threads.nodes()[node], *tiles);
  for (const auto& [from, to] : bytes) *found++ = from, *found++ = to;
  return static_cast<int>(bytes.size());
}

extern "C" void touch(int num_nodes, uint8_t* array, int64_t size, const FreshTiles* tiles, int count) {
  touch_tiles(threads_of(5, num_nodes), reinterpret_cast<std::byte*>(array), size, tiles, count, 2);
}

extern "C" int spread(int num_nodes, void* begin, int64_t size, int policy) {
  const unsigned long mask = 1;
  if (syscall(SYS_set_mempolicy, policy, policy == 0 ? nullptr : &mask, policy == 0 ? 0 : 64) != 0) return -1;
  const int error = interleave(threads_of(4, num_nodes), begin, size);
  syscall(SYS_set_mempolicy, 0, nullptr, 0);
  return error;
}

extern "C" int error_of(int num_nodes) { return interleave_error(threads_of(4, num_nodes)); }
"""

PAGE = 4096
DEFAULT, BIND = 0, 2  # as set_mempolicy(2) numbers policies

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of memory nodes")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    sources = "nodes/node_memory.cc", "nodes/topology.cc", "nodes/thread_nodes.cc"
    return build(HARNESS, tmp_path_factory.mktemp("node_memory"), *sources)


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 30), st.integers(1, 30), st.booleans())
def test_a_node_has_the_tiles_with_which_its_threads_begin(
    library: ctypes.CDLL, num_threads: int, num_nodes: int, before: int, count: int, is_gated: bool
) -> None:
    """Of a part of a matrix behind other tiles; each byte stands for a tile."""
    results = (before + count + 1) // 2 if is_gated else before + count
    tiles = (ctypes.c_int64 * 5)(7, 1, count, before, results)
    owners = np.full(count, -1)
    for node in range(min(num_nodes, num_threads)):
        found = (ctypes.c_int64 * 8)()
        for i in range(library.ranges(num_threads, num_nodes, node, tiles, found)):
            begin, end = found[2 * i : 2 * i + 2]
            assert (owners[begin - 7 : end - 7] == -1).all()
            owners[begin - 7 : end - 7] = node
    numbers = (before + np.arange(count)) % results
    threads = [next(t for t in range(num_threads) if number < results * (t + 1) // num_threads) for number in numbers]
    with_threads = sorted({thread * num_nodes // num_threads for thread in range(num_threads)})
    expected = [with_threads.index(thread * num_nodes // num_threads) for thread in threads]
    assert owners.tolist() == expected


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_all_memory_of_tiles_is_taken_at_once_on_several_nodes(library: ctypes.CDLL, num_nodes: int) -> None:
    with mmap.mmap(-1, 40 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        array = np.frombuffer(memory, np.uint8)
        # Two parts whose tiles alternate, and of which the last is shorter than the array's end would allow.
        tiles = np.array([(0, 2 * PAGE, 20, 0, 20), (PAGE, 2 * PAGE, 20, 20, 20)], np.int64)
        size = array.nbytes - PAGE // 2
        library.touch(
            num_nodes, ctypes.c_void_p(array.ctypes.data), ctypes.c_int64(size),
            tiles.ctypes.data_as(ctypes.c_void_p), len(tiles),
        )  # fmt: skip
        resident = np.zeros(40, np.uint8)
        address = ctypes.c_void_p(array.ctypes.data)
        assert (
            ctypes.CDLL(None).mincore(address, ctypes.c_size_t(array.nbytes), resident.ctypes.data_as(ctypes.c_void_p))
            == 0
        )
        assert (resident & 1).tolist() == [int(num_nodes > 1)] * 40
        assert not array.any()
        del array


def test_what_any_thread_reads_is_of_all_nodes_in_turn(library: ctypes.CDLL) -> None:
    assert "interleave" in policy_of_spread(library, 2, DEFAULT)


def test_on_one_node_nothing_is_asked_for(library: ctypes.CDLL) -> None:
    assert policy_of_spread(library, 1, DEFAULT) == "default"
    assert library.error_of(1) == 0


def test_the_policy_of_the_process_stays(library: ctypes.CDLL) -> None:
    assert "interleave" not in policy_of_spread(library, 2, BIND)


def policy_of_spread(library: ctypes.CDLL, num_nodes: int, own_policy: int) -> str:
    """The policy of fresh memory after it was spread by a thread of a policy."""
    maps = Path("/proc/self/numa_maps")
    if not maps.exists():
        pytest.skip("this system has no memory nodes")
    with mmap.mmap(-1, 16 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        array = np.frombuffer(memory, np.uint8)
        begin = array.ctypes.data
        error = library.spread(num_nodes, ctypes.c_void_p(begin), ctypes.c_int64(len(array)), own_policy)
        del array
        if error in (-1, errno.EPERM, errno.ENOSYS):
            pytest.skip("a sandbox forbids policies of memory")
        assert error == 0
        policies = {int(line.split()[0], 16): line.split()[1] for line in maps.read_text().splitlines()}
    return policies[max(address for address in policies if address <= begin)]
