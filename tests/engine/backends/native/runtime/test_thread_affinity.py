"""A worker on its caller's processor is moved, may go everywhere again, and is left alone where moving did harm."""

from __future__ import annotations

import ctypes
import os
import sys

import pytest

from tests.engine.backends.native.runtime.harness import OF_POOL, build

MOST_TRIES = 1000  # the system may move a thread at any moment

# `move_of_worker` binds a worker to its caller's processor, and returns what became of it. In the other functions one
# thread is both the caller and the worker, so that all is known of when it tells where it is. `jobs_until_moved` lets
# the caller rest as often as it is told, each time once a move has come, and counts the jobs before each of them.
HARNESS = """
#include "runtime/pool.h"
#include "runtime/thread_affinity.h"
#include <atomic>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

using namespace eagre;

enum Outcome { kMovedAndFree = 0, kNeverMoved = 1, kBoundForGood = 2, kRefused = 3 };

cpu_set_t set_of(int thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(thread, sizeof set, &set);
  return set;
}

void bind(int thread, int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  sched_setaffinity(thread, sizeof set, &set);
}

extern "C" int move_of_worker(int most_tries) {
  Pool pool(2);
  std::atomic<int> worker{0}, place{-1};
  const auto run_on_both = [&] {
    worker = 0;
    pool.run(2, [&](int64_t, int thread) {
      if (thread == 1) {
        place = sched_getcpu();
        worker = static_cast<int>(syscall(SYS_gettid));
      }
      while (worker == 0) std::this_thread::yield();
    });
  };
  run_on_both();
  const cpu_set_t all = set_of(0);
  for (int tries = 0; tries < most_tries; ++tries) {
    const int here = sched_getcpu();
    bind(worker, here);
    run_on_both();  // the worker sees where it is
    bind(0, here);  // where the system has idle processors, it may have parted the two
    sched_setaffinity(0, sizeof all, &all);
    run_on_both();
    if (place == here) continue;
    for (; tries < most_tries; ++tries) {  // a worker may have been moved once more
      run_on_both();
      const cpu_set_t now = set_of(worker);
      if (CPU_EQUAL(&now, &all)) return kMovedAndFree;
    }
    return kBoundForGood;
  }
  return kNeverMoved;
}

// Until the one thread has left its processor.
int jobs_until_move(ThreadAffinity& affinity, int most) {
  const cpu_set_t all = set_of(0);
  for (int jobs = 1; jobs <= most; ++jobs) {
    affinity.record_processor(1);
    affinity.separate_threads();
    const cpu_set_t now = set_of(0);
    if (CPU_EQUAL(&now, &all)) continue;
    affinity.record_processor(1);
    const cpu_set_t then = set_of(0);
    return CPU_EQUAL(&then, &all) ? jobs : -1;
  }
  return -2;
}

extern "C" void jobs_until_moved(int num_rests, int most, int* jobs) {
  ThreadAffinity affinity(2);
  for (int i = 0; i <= num_rests; ++i) {
    jobs[i] = jobs_until_move(affinity, most);
    affinity.suspend_moves();
  }
}

// A worker of a node with one processor, and of one with all others, from where the caller would have it moved.
extern "C" bool stays_on_its_node(bool is_beside_caller) {
  const cpu_set_t all = set_of(0);
  const int here = sched_getcpu();
  cpu_set_t home;
  CPU_ZERO(&home);
  std::vector<int> processors;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (!CPU_ISSET(processor, &all) || (processor == here) != is_beside_caller) continue;
    processors.push_back(processor);
    CPU_SET(processor, &home);
  }
  ThreadAffinity affinity(2);
  affinity.keep_to(1, processors);
  affinity.settle(1);
  bool stays = true;
  for (int jobs = 0; jobs < 100; ++jobs) {
    affinity.record_processor(1);
    affinity.separate_threads();
    const cpu_set_t now = set_of(0);
    cpu_set_t within;
    CPU_AND(&within, &now, &home);
    stays &= CPU_EQUAL(&now, &within) != 0;
  }
  affinity.record_processor(1);
  const cpu_set_t then = set_of(0);
  sched_setaffinity(0, sizeof all, &all);
  return stays && CPU_EQUAL(&then, &home);
}

extern "C" bool is_with_caller_on_one_processor() {
  const cpu_set_t all = set_of(0);
  bind(0, sched_getcpu());
  ThreadAffinity affinity(2);
  const bool is_before = affinity.is_with_caller(1);
  affinity.separate_threads();
  affinity.record_processor(1);
  const bool is_then = affinity.is_with_caller(1);
  sched_setaffinity(0, sizeof all, &all);
  return is_then && !is_before;
}
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells where a thread is, and moves it")
several_processors = pytest.mark.skipif(
    sys.platform == "linux" and len(os.sched_getaffinity(0)) < 2, reason="there is one processor only"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = build(HARNESS, tmp_path_factory.mktemp("thread_affinity"), *OF_POOL)
    library.is_with_caller_on_one_processor.restype = ctypes.c_bool
    library.stays_on_its_node.restype = ctypes.c_bool
    return library


@several_processors
def test_a_worker_on_its_callers_processor_is_moved_and_may_go_everywhere_again(library: ctypes.CDLL) -> None:
    assert library.move_of_worker(MOST_TRIES) == 0, "see Outcome"


@several_processors
def test_whoever_had_to_wait_moves_nobody_for_a_while_and_for_twice_as_long_the_next_time(library: ctypes.CDLL) -> None:
    jobs = (ctypes.c_int * 3)()
    library.jobs_until_moved(2, 10_000, jobs)
    before, first, second = jobs
    assert 0 < before < 500 < first < 1000 < second < 2000


def test_a_worker_knows_that_it_is_where_its_caller_is(library: ctypes.CDLL) -> None:
    assert library.is_with_caller_on_one_processor()


@several_processors
@pytest.mark.parametrize("is_beside_caller", [False, True])
def test_a_worker_stays_on_the_processors_of_its_memory_node(library: ctypes.CDLL, is_beside_caller: bool) -> None:
    assert library.stays_on_its_node(ctypes.c_bool(is_beside_caller))
