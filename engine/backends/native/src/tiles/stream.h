// How kernels walk over tiles: what is prefetched, and the kernel for a number of rows.
#pragma once

#include <cstddef>
#include <type_traits>

#include "isa/isa.h"
#include "layout/packed_rows.h"

namespace eagre {

// What the hardware prefetches ends at each page of 4 KiB, so the stream of weights is asked for ahead.
constexpr int kBytesAhead = 4096;
// Where groups are multiplied as they are read, up to about eight rows are bound by memory: more has to be on its way then
// than the first cache can wait for, so it is asked for earlier, and no nearer than the second cache. With 8 to 16 rows a
// Zen 5 is 1 to 15 % faster so, too, and AVX2 as fast; with 12 KiB and more, few rows are slower.
constexpr int kBytesFarAhead = 8192;

// Asks for the lines of one of the equal parts of a block of kBytes. No more lines are asked for at once than the processor
// keeps on its way: a whole block of eight groups is more than that, and whoever asks for the next line then waits.
template <size_t kBytes, int kParts, bool kLater = false>
inline void ask_for_part(const std::byte* block, int part) {
  constexpr int kLines = (kBytes + 63) / 64;
  for (int line = part * kLines / kParts; line < (part + 1) * kLines / kParts; ++line) {
    if constexpr (kLater) {
      prefetch_later(block + 64 * line);
    } else {
      prefetch(block + 64 * line);
    }
  }
}

// Asks for what comes behind one of the equal parts of a block, while that part is read.
template <size_t kBytes, int kParts = 1>
inline void prefetch_behind(const std::byte* block, int part = 0) {
  ask_for_part<kBytes, kParts>(block + kBytesAhead, part);
}
template <size_t kBytes, int kParts>
inline void prefetch_far_behind(const std::byte* block, int part) {
  ask_for_part<kBytes, kParts, true>(block + kBytesFarAhead, part);
}

// Calls body with a constant that is the number of rows, one of those that padded_rows gives.
template <class Body>
void with_rows(int rows, const Body& body) {
  switch (rows) {
    case 1: return body(std::integral_constant<int, 1>());
    case 2: return body(std::integral_constant<int, 2>());
    case 4: return body(std::integral_constant<int, 4>());
    case 6: return body(std::integral_constant<int, 6>());
    case 8: return body(std::integral_constant<int, 8>());
    case 10: return body(std::integral_constant<int, 10>());
    case 12: return body(std::integral_constant<int, 12>());
    default: return body(std::integral_constant<int, kBlockRows>());
  }
}

}  // namespace eagre
