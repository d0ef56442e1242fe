"""Which lines of memory are asked for, in which order, with a recorder in the place of the processor's instruction."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.backends.native.runtime.harness import build

NUM_STRETCHES = 4
LINES_AT_ONCE = 4
LINES_APART = 1 << 20  # from the beginning of a stretch to that of the next

HARNESS = """
#include <vector>
#include "isa/isa.h"

namespace eagre {
static std::vector<int64_t> asked;
inline void record(const void* line) { asked.push_back(reinterpret_cast<int64_t>(line) / 64); }
}  // namespace eagre

#define prefetch_later record
#include "runtime/prefetch.h"

const bool eagre::processor_keeps_requests = false;

// Stretches are told by the lines at which they begin, 0 for none, and how many of `lines` are left of each. Writes the
// lines that were asked for, and returns how many they are.
extern "C" int64_t ask(const int64_t* begins, const int64_t* left, int64_t lines, int num_calls, bool is_of_each,
                       int64_t* to) {
  using namespace eagre;
  const uint8_t* stretches[Prefetch::kStretches];
  for (int i = 0; i < Prefetch::kStretches; ++i) stretches[i] = reinterpret_cast<const uint8_t*>(begins[i] * 64);
  Prefetch ahead;
  const auto do_nothing = [](int, auto) {};
  asked.clear();
  prefetch_beside<4>(ahead, 1, do_nothing);
  ahead.prefetch_each(4);  // nothing has begun
  ahead.begin(stretches, 64 * lines);
  for (int i = 0; i < Prefetch::kStretches; ++i) {
    if (begins[i] != 0) ahead.shorten(i, 64 * left[i]);
  }
  if (!is_of_each) prefetch_beside<4>(ahead, num_calls, do_nothing);
  for (int i = 0; is_of_each && i < num_calls; ++i) ahead.prefetch_each(4);
  std::copy(asked.begin(), asked.end(), to);
  return static_cast<int64_t>(asked.size());
}

// Counts the turns of a loop beside which a stretch of ten lines is asked for.
extern "C" int count_turns(int count) {
  using namespace eagre;
  const uint8_t lines[640] = {};
  const uint8_t* const stretches[Prefetch::kStretches] = {lines};
  Prefetch ahead;
  ahead.begin(stretches, sizeof lines);
  int num_turns = 0;
  prefetch_beside<4>(ahead, count, [&](int turn, auto) { num_turns += turn == num_turns; });
  return num_turns;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(HARNESS, tmp_path_factory.mktemp("prefetch"))


# Of each stretch how many LINES_AT_ONCE are left of all; None: it is not there.
stretches = st.lists(st.none() | st.integers(0, 20), min_size=NUM_STRETCHES, max_size=NUM_STRETCHES)
calls = st.integers(0, 100)


@settings(max_examples=60, deadline=None)
@given(stretches, calls)
def test_one_stretch_comes_behind_the_other(library: ctypes.CDLL, quarters: list[int | None], num_calls: int) -> None:
    expected = [begin + line for begin, left in whole(quarters) for line in range(left)]
    assert ask(library, quarters, num_calls, is_of_each=False) == expected[: num_calls * LINES_AT_ONCE]


@settings(max_examples=60, deadline=None)
@given(stretches, calls)
def test_stretches_are_asked_for_side_by_side(library: ctypes.CDLL, quarters: list[int | None], num_calls: int) -> None:
    reached = num_calls * LINES_AT_ONCE
    expected = [begin + line for line in range(reached) for begin, left in whole(quarters) if line < left]
    assert ask(library, quarters, num_calls, is_of_each=True) == expected


@pytest.mark.parametrize(("num_calls", "num_turns"), [(0, 0), (3, 3), (90, 90)])
def test_every_turn_is_taken(library: ctypes.CDLL, num_calls: int, num_turns: int) -> None:
    assert library.count_turns(num_calls) == num_turns


def whole(quarters: list[int | None]) -> list[tuple[int, int]]:
    """The first line and the number of lines of each stretch that is there."""
    places = zip(begins_of(quarters), quarters, strict=True)
    return [(begin, left * LINES_AT_ONCE) for begin, left in places if left is not None]


def begins_of(quarters: list[int | None]) -> list[int]:
    return [0 if left is None else (i + 1) * LINES_APART for i, left in enumerate(quarters)]


def ask(library: ctypes.CDLL, quarters: list[int | None], num_calls: int, *, is_of_each: bool) -> list[int]:
    """The lines that so many calls ask for."""
    most = (num_calls + 1) * LINES_AT_ONCE * NUM_STRETCHES
    asked = (ctypes.c_int64 * most)()
    library.ask.restype = ctypes.c_int64
    begins = (ctypes.c_int64 * NUM_STRETCHES)(*begins_of(quarters))
    left = (ctypes.c_int64 * NUM_STRETCHES)(*(LINES_AT_ONCE * (each or 0) for each in quarters))
    lines = ctypes.c_int64(LINES_AT_ONCE * max((each or 0) for each in quarters))
    count = library.ask(begins, left, lines, num_calls, is_of_each, asked)
    return asked[:count]
