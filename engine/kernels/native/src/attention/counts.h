// Counts as constants, for loops whose sums are kept in registers.
#pragma once

#include <type_traits>

namespace eagre {

// Calls body(constant of the count) for a count from 1 to kMost.
template <int kMost, class Body>
inline void with_count(int count, const Body& body) {
  if constexpr (kMost == 1) {
    body(std::integral_constant<int, 1>());
  } else if (count >= kMost) {
    body(std::integral_constant<int, kMost>());
  } else {
    with_count<kMost - 1>(count, body);
  }
}

}  // namespace eagre
