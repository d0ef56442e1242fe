"""What followed a product the last time, beside a dictionary that remembers it."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.backends.native.runtime.harness import build

NUM_THREADS = 3

# Follows matrices 1, 2, ... as they come. A stretch has as many lines of 64 bytes as tell its matrix and its thread:
# what `expected` gets of each call and thread, 0 where nothing is known.
HARNESS = """
#include <new>
#include "runtime/next_matrix_predictor.h"

extern "C" void follow(int num_threads, int num_calls, const int32_t* matrices, int32_t* expected) {
  using namespace eagre;
  NextMatrixPredictor predictor;
  for (int call = 0; call < num_calls; ++call) {
    const auto begin_of = [&](int thread) {
      static const uint8_t nothing[64] = {};
      const uint8_t* stretches[Prefetch::kStretches] = {nothing};
      Prefetch ahead;
      ahead.begin(stretches, 64 * (matrices[call] * num_threads + thread));
      return ahead;
    };
    const auto* matrix = reinterpret_cast<const std::byte*>(intptr_t{4096} * matrices[call]);
    const Prefetch* next = predictor.predict(matrix, num_threads, begin_of);
    for (int thread = 0; thread < num_threads; ++thread, ++expected) {
      *expected = 0;
      if (next == nullptr) continue;
      for (Prefetch ahead = next[thread]; !ahead.is_done(); ahead.prefetch_each(1)) ++*expected;
    }
  }
}

// As above, where the beginnings of matrix 2 once do not come to their end, and one line tells what was noted of them.
// Returns how many lines a thread is told the next time, when there are two.
extern "C" int follow_after_failure(int num_threads) {
  using namespace eagre;
  NextMatrixPredictor predictor;
  const auto matrix = [](intptr_t number) { return reinterpret_cast<const std::byte*>(4096 * number); };
  const auto lines = [](int count) {
    static const uint8_t nothing[64] = {};
    const uint8_t* stretches[Prefetch::kStretches] = {nothing};
    Prefetch ahead;
    ahead.begin(stretches, 64 * count);
    return ahead;
  };
  const auto two_lines = [&](int) { return lines(2); };
  predictor.predict(matrix(1), num_threads, two_lines);
  try {
    predictor.predict(matrix(2), num_threads, [&](int thread) {
      if (thread + 1 == num_threads) throw std::bad_alloc();
      return lines(1);
    });
  } catch (const std::bad_alloc&) {
  }
  predictor.predict(matrix(2), num_threads, two_lines);
  int told = 0;
  Prefetch ahead = *predictor.predict(matrix(1), num_threads, two_lines);
  for (; !ahead.is_done(); ahead.prefetch_each(1)) ++told;
  return told;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(HARNESS, tmp_path_factory.mktemp("next_matrix_predictor"))


def test_the_second_round_knows_what_follows(library: ctypes.CDLL) -> None:
    assert follow(library, [1, 2, 3, 1, 2, 3]) == [None, None, None, 2, 3, 1]


def test_what_follows_is_what_followed_last(library: ctypes.CDLL) -> None:
    assert follow(library, [1, 2, 1, 3, 1, 1, 1]) == [None, None, 2, None, 3, 1, 1]


def test_what_could_not_be_noted_is_not_told(library: ctypes.CDLL) -> None:
    """Workers would read behind the beginnings that were noted before memory was refused."""
    assert library.follow_after_failure(NUM_THREADS) == 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3000), max_size=60) | st.lists(st.integers(1, 5), max_size=60))
def test_nothing_is_told_but_the_last_successor(library: ctypes.CDLL, matrices: list[int]) -> None:
    successors: dict[int, int] = {}
    last = None
    for matrix, told in zip(matrices, follow(library, matrices), strict=True):
        if last is not None:
            successors[last] = matrix
        # Two matrices in one slot of the table forget each other's.
        assert told is None or told == successors[matrix]
        last = matrix


def follow(library: ctypes.CDLL, matrices: list[int]) -> list[int | None]:
    """What is expected behind each of the matrices, by all threads alike."""
    expected = (ctypes.c_int32 * (len(matrices) * NUM_THREADS))()
    library.follow(NUM_THREADS, len(matrices), (ctypes.c_int32 * len(matrices))(*matrices), expected)
    told: list[int | None] = []
    for call in range(len(matrices)):
        of_threads = expected[call * NUM_THREADS : (call + 1) * NUM_THREADS]
        matrix = of_threads[0] // NUM_THREADS or None
        assert of_threads == [0 if matrix is None else matrix * NUM_THREADS + i for i in range(NUM_THREADS)]
        told.append(matrix)
    return told
