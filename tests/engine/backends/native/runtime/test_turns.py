"""Turns at the pool: fair by time, whatever the lengths of the calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from tests.engine.backends.native.runtime.harness import build

# Runs that make calls of so many microseconds each, one after the other, for some time. A call sleeps, so that the
# share does not depend on who gets a core of a busy machine. The first ones are patient.
HARNESS = """
#include "runtime/turns.h"
#include <atomic>
#include <thread>
#include <vector>

extern "C" int64_t use(int num_runs, const int64_t* call_us, int64_t num_patient, int64_t total_us, double* held_us) {
  using namespace eagre;
  Turns turns;
  std::atomic<int> num_inside{0};
  std::atomic<int64_t> num_overlaps{0};
  std::vector<std::thread> threads;
  const auto end = Turns::Clock::now() + std::chrono::microseconds(total_us);
  for (int run = 0; run < num_runs; ++run) {
    threads.emplace_back([&, run] {
      while (Turns::Clock::now() < end) {
        turns.begin(run + 1);
        if (run < num_patient) turns.make_patient();
        if (num_inside.fetch_add(1) > 0) ++num_overlaps;
        const auto began = Turns::Clock::now();
        std::this_thread::sleep_for(std::chrono::microseconds(call_us[run]));
        held_us[run] += std::chrono::duration<double, std::micro>(Turns::Clock::now() - began).count();
        num_inside.fetch_sub(1);
        turns.end();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return num_overlaps;
}

// Of a run that holds the turn until another one waits, and then pauses: whether it was contended before, and whether
// the other had its turn before the pause ended.
extern "C" int pause() {
  using namespace eagre;
  Turns turns;
  turns.begin(1);
  const bool was_contended = turns.is_contended();
  std::atomic<bool> has_begun{false};
  std::thread other([&] {
    turns.begin(2);
    has_begun = true;
    turns.end();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than a run may be ahead
  while (!turns.is_contended()) std::this_thread::yield();
  turns.end();
  turns.begin(1);
  const bool was_first = has_begun;
  turns.end();
  other.join();
  return (was_contended ? 2 : 0) + (was_first ? 1 : 0);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(HARNESS, tmp_path_factory.mktemp("turns"), "runtime/turns.cc")


def held_by(library: ctypes.CDLL, call_us: tuple[int, ...], total_us: int, num_patient: int = 0) -> list[float]:
    """The microseconds for which each run has held the turn; none met another inside."""
    held = (ctypes.c_double * len(call_us))()
    lengths = (ctypes.c_int64 * len(call_us))(*call_us)
    assert library.use(len(call_us), lengths, ctypes.c_int64(num_patient), ctypes.c_int64(total_us), held) == 0
    return list(held)


def assert_held(measure: Callable[[], list[float]], is_right: Callable[[list[float]], bool]) -> None:
    """Measures until the times are right: a machine that stops a process for long counts that for one run or none."""
    seen = []
    for _ in range(20):
        seen.append(measure())
        if is_right(seen[-1]):
            return
    pytest.fail(f"the turn was held for {seen} microseconds")


@pytest.mark.parametrize("call_us", [(50, 5000), (1000, 1000), (20, 3000, 200)])
def test_each_run_holds_the_turn_for_its_share_of_the_time(library: ctypes.CDLL, call_us: tuple[int, ...]) -> None:
    def is_fair(held: list[float]) -> bool:
        fair = sum(held) / len(held)
        return all(0.5 * fair < share < 1.5 * fair for share in held)

    assert_held(lambda: held_by(library, call_us, 400_000), is_fair)


@pytest.mark.parametrize("call_us", [(50, 3000), (2000, 1000), (1000, 50)])
def test_a_patient_run_holds_the_turn_for_a_quarter_of_the_time(library: ctypes.CDLL, call_us: tuple[int, ...]) -> None:
    assert_held(
        lambda: held_by(library, call_us, 300_000, num_patient=1), lambda held: 0.15 < held[0] / sum(held) < 0.35
    )


@pytest.mark.parametrize("num_patient", [0, 1])
def test_a_run_that_is_alone_never_waits(library: ctypes.CDLL, num_patient: int) -> None:
    assert_held(lambda: held_by(library, (1000,), 100_000, num_patient), lambda held: held[0] > 80_000)


def test_a_run_that_pauses_is_told_of_another_that_waits_and_lets_it_go_first(library: ctypes.CDLL) -> None:
    assert library.pause() == 1
