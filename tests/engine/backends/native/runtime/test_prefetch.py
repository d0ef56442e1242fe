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

// Stretches are told by the lines at which they begin, 0 for none. Writes the lines that were asked for, and returns
// how many they are.
extern "C" int64_t ask(const int64_t* begins, int64_t lines, int num_calls, bool is_of_each, int64_t* to) {
  using namespace eagre;
  const uint8_t* stretches[Prefetch::kStretches];
  for (int i = 0; i < Prefetch::kStretches; ++i) stretches[i] = reinterpret_cast<const uint8_t*>(begins[i] * 64);
  Prefetch ahead;
  asked.clear();
  ahead.prefetch_lines<4>();
  ahead.prefetch_each(4);  // nothing has begun
  ahead.begin(stretches, 64 * lines);
  for (int i = 0; i < num_calls; ++i) {
    if (is_of_each) ahead.prefetch_each(4); else ahead.prefetch_lines<4>();
  }
  std::copy(asked.begin(), asked.end(), to);
  return static_cast<int64_t>(asked.size());
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build(HARNESS, tmp_path_factory.mktemp("prefetch"))


stretches = st.lists(st.booleans(), min_size=NUM_STRETCHES, max_size=NUM_STRETCHES)
quarters = st.integers(0, 20)  # of LINES_AT_ONCE


@settings(max_examples=60, deadline=None)
@given(stretches, quarters, st.integers(0, 100))
def test_one_stretch_comes_behind_the_other(
    library: ctypes.CDLL, is_there: list[bool], quarters: int, num_calls: int
) -> None:
    lines = quarters * LINES_AT_ONCE
    begins = begins_of(is_there)
    expected = [begin + line for begin in begins if begin for line in range(lines)]
    assert ask(library, begins, lines, num_calls, is_of_each=False) == expected[: num_calls * LINES_AT_ONCE]


@settings(max_examples=60, deadline=None)
@given(stretches, quarters, st.integers(0, 100))
def test_stretches_are_asked_for_side_by_side(
    library: ctypes.CDLL, is_there: list[bool], quarters: int, num_calls: int
) -> None:
    lines = quarters * LINES_AT_ONCE
    begins = begins_of(is_there)
    reached = min(lines, num_calls * LINES_AT_ONCE)
    expected = [begin + line for line in range(reached) for begin in begins if begin]
    assert ask(library, begins, lines, num_calls, is_of_each=True) == expected


def begins_of(is_there: list[bool]) -> list[int]:
    return [(i + 1) * LINES_APART if there else 0 for i, there in enumerate(is_there)]


def ask(library: ctypes.CDLL, begins: list[int], lines: int, num_calls: int, *, is_of_each: bool) -> list[int]:
    """The lines that so many calls ask for."""
    most = (num_calls + 1) * LINES_AT_ONCE * NUM_STRETCHES
    asked = (ctypes.c_int64 * most)()
    library.ask.restype = ctypes.c_int64
    of_stretches = (ctypes.c_int64 * NUM_STRETCHES)(*begins)
    count = library.ask(of_stretches, ctypes.c_int64(lines), num_calls, is_of_each, asked)
    return asked[:count]
