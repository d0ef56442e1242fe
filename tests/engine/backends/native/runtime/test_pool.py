"""Threads that share tasks: each task is done once, and nobody waits long for a thread that is put aside."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.backends.native.runtime.harness import OF_POOL, build
from tests.patience import PATIENCE_S

# `run` counts how often each task of each job was done, and says which thread did it. `run_beside_stuck` gives each
# worker a first task that ends only when all tasks but those of the workers are done, and returns how many those are.
# `tasks_in_order` does that to all threads but one, and writes the tasks of that one as it takes them.
# `all_threads_come` says whether every thread of a pool has come to each job, after pauses in which they fall asleep.
# Nodes are of processors that are not there, so that threads are kept nowhere.
HARNESS = """
#include "runtime/pool.h"
#include <atomic>

using namespace eagre;

static ThreadNodes threads_of(int num_threads, int num_nodes) {
  Topology topology;
  for (int node = 0; node < num_nodes; ++node) topology.push_back({node, {}});
  return ThreadNodes(num_threads, topology);
}

extern "C" void run(
    int num_threads, int num_nodes, int num_jobs, const int64_t* sizes, int32_t* counts, int32_t* threads) {
  Pool pool(threads_of(num_threads, num_nodes));
  for (int job = 0; job < num_jobs; ++job) {
    pool.run(sizes[job], [&](int64_t task, int thread) {
      ++counts[task];
      threads[task] = thread;
    });
    counts += sizes[job];
    threads += sizes[job];
  }
}

extern "C" int64_t run_beside_stuck(int num_threads, int64_t num_tasks) {
  Pool pool(num_threads);
  std::atomic<int64_t> num_free{0}, num_stuck{0};
  pool.run(num_tasks, [&](int64_t, int thread) {
    if (thread == 0) {
      ++num_free;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      return;
    }
    ++num_stuck;
    while (num_free + num_stuck < num_tasks) std::this_thread::yield();
  });
  return num_stuck;
}

extern "C" int64_t tasks_in_order(int num_threads, int num_nodes, int free_thread, int64_t num_tasks, int32_t* tasks) {
  Pool pool(threads_of(num_threads, num_nodes));
  std::atomic<int64_t> num_free{0}, num_stuck{0};
  pool.run(num_tasks, [&](int64_t task, int thread) {
    if (thread == free_thread) {
      tasks[num_free++] = static_cast<int32_t>(task);
      return;
    }
    ++num_stuck;
    while (num_free + num_stuck < num_tasks) std::this_thread::yield();
  });
  return num_free;
}

extern "C" bool all_threads_come(int num_threads, int num_jobs, int seconds) {
  Pool pool(num_threads);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  std::atomic<bool> is_late{false};
  for (int job = 0; job < num_jobs; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::atomic<int> num_come{0};
    pool.run(num_threads, [&](int64_t, int) {
      ++num_come;
      while (num_come < num_threads && !is_late) {
        std::this_thread::yield();
        is_late = is_late || std::chrono::steady_clock::now() > end;
      }
    });
  }
  return !is_late;
}

"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = build(HARNESS, tmp_path_factory.mktemp("pool"), *OF_POOL)
    library.all_threads_come.restype = ctypes.c_bool
    library.run_beside_stuck.restype = ctypes.c_int64
    library.run_beside_stuck.argtypes = ctypes.c_int, ctypes.c_int64
    return library


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 21), st.integers(1, 4), st.lists(st.integers(0, 60), min_size=1, max_size=40))
def test_each_task_of_each_job_is_done_once(
    library: ctypes.CDLL, num_threads: int, num_nodes: int, sizes: list[int]
) -> None:
    counts, _ = run(library, num_threads, sizes, num_nodes)
    assert (counts == 1).all()


def test_a_job_may_have_more_tasks_than_fit_into_a_share(library: ctypes.CDLL) -> None:
    counts, _ = run(library, 3, [2_500_000, 7])
    assert (counts == 1).all()


def test_a_lone_thread_does_all(library: ctypes.CDLL) -> None:
    counts, threads = run(library, 1, [10, 3])
    assert (counts == 1).all()
    assert (threads == 0).all()


@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_a_worker_that_is_put_aside_delays_a_job_by_one_task(library: ctypes.CDLL, num_threads: int) -> None:
    # Each worker holds the one task that it has begun, and the caller does all others, those of their shares too.
    num_stuck = library.run_beside_stuck(num_threads, 100)
    assert num_stuck <= num_threads - 1


@pytest.mark.parametrize("num_threads", [2, 7, 24])
def test_every_thread_that_a_job_is_for_is_woken(library: ctypes.CDLL, num_threads: int) -> None:
    """None of a job's tasks ends before all threads have one."""
    assert library.all_threads_come(num_threads, 10, int(PATIENCE_S))


def test_threads_that_a_job_has_no_task_for_stay_out_of_it(library: ctypes.CDLL) -> None:
    counts, threads = run(library, 8, [2, 3] * 50)
    assert (counts == 1).all()
    assert set(threads) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("num_threads", "num_nodes", "thread"), [(4, 2, 3), (6, 3, 2), (5, 2, 4), (20, 1, 19), (20, 2, 4), (20, 2, 18)]
)
def test_a_thread_takes_tasks_of_its_own_memory_node_first(
    library: ctypes.CDLL, num_threads: int, num_nodes: int, thread: int
) -> None:
    num_tasks = 4 * num_threads
    found = (ctypes.c_int32 * num_tasks)()
    count = library.tasks_in_order(num_threads, num_nodes, thread, ctypes.c_int64(num_tasks), found)
    assert count > 0
    owners = [task // 4 for task in found[:count]]
    nodes = [owner * num_nodes // num_threads for owner in owners]
    own = [owner for owner in owners if owner == thread]
    assert owners[: len(own)] == own
    at_home = [node == thread * num_nodes // num_threads for node in nodes]
    assert at_home == sorted(at_home, reverse=True)
    # Tasks of its own are taken from the front, and those of others from the end.
    for owner in set(owners):
        tasks = [task for task in found[:count] if task // 4 == owner]
        assert tasks == sorted(tasks, reverse=owner != thread)


def run(library: ctypes.CDLL, num_threads: int, sizes: list[int], num_nodes: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """How often each task was done, job after job, and by which thread."""
    of_jobs = np.array(sizes, np.int64)
    counts, threads = np.zeros((2, max(1, of_jobs.sum())), np.int32)
    pointer = ctypes.POINTER
    library.run(
        num_threads, num_nodes, len(sizes), of_jobs.ctypes.data_as(pointer(ctypes.c_int64)),
        counts.ctypes.data_as(pointer(ctypes.c_int32)), threads.ctypes.data_as(pointer(ctypes.c_int32)),
    )  # fmt: skip
    return counts[: of_jobs.sum()], threads[: of_jobs.sum()]
