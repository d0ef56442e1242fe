"""Threads that share tasks: each task is done once, and nobody waits long for a thread that is put aside."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.backends.native.runtime.harness import build

# `run` counts how often each task of each job was done, and says which thread did it. `run_beside_stuck` gives each
# worker a first task that ends only when all tasks but those of the workers are done, and returns how many those are.
HARNESS = """
#include "runtime/pool.h"
#include <atomic>

using namespace eagre;

extern "C" void run(int num_threads, int num_jobs, const int64_t* sizes, int32_t* counts, int32_t* threads) {
  Pool pool(num_threads);
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

"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = build(HARNESS, tmp_path_factory.mktemp("pool"), "pool.cc", "thread_affinity.cc", "turns.cc")
    library.run_beside_stuck.restype = ctypes.c_int64
    library.run_beside_stuck.argtypes = ctypes.c_int, ctypes.c_int64
    return library


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(0, 60), min_size=1, max_size=40))
def test_each_task_of_each_job_is_done_once(library: ctypes.CDLL, num_threads: int, sizes: list[int]) -> None:
    counts, _ = run(library, num_threads, sizes)
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


def run(library: ctypes.CDLL, num_threads: int, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """How often each task was done, job after job, and by which thread."""
    of_jobs = np.array(sizes, np.int64)
    counts, threads = np.zeros((2, max(1, of_jobs.sum())), np.int32)
    pointer = ctypes.POINTER
    library.run(
        num_threads, len(sizes), of_jobs.ctypes.data_as(pointer(ctypes.c_int64)),
        counts.ctypes.data_as(pointer(ctypes.c_int32)), threads.ctypes.data_as(pointer(ctypes.c_int32)),
    )  # fmt: skip
    return counts[: of_jobs.sum()], threads[: of_jobs.sum()]
