// What rows are packed with for products of pairs: see tiles/pair_products.cc.
#pragma once

#include <cstdlib>
#include <cstring>

#include "isa/isa.h"
#include "layout/format.h"
#include "layout/rounding.h"

namespace eagre {

// A group is eight vectors of four inputs. Of its first half and its second, so many vectors are multiplied in pairs, and
// the others as they are: then the units that add and those that multiply have about as much to do.
constexpr int kPairVectors = 3;
constexpr int kLeastRowsOfPairs = 12;  // fewer do not pay for what the weights need

constexpr bool has_pair_kernel(Format format) {
  const Layout layout = layout_of(format);
  return layout.low_bits == 4 && layout.high_bits == 0 && layout.parts == 1 && !layout.codes;
}

// AMD's processors add bytes in units that do not multiply, Intel's in the same ones. EAGRE_PAIR_PRODUCTS=0 or 1 says
// otherwise, for tests and measurements.
inline bool pairs_are_faster() {
#ifdef EAGRE_HAS_PAIR_PRODUCTS
  static const bool answer = [] {
    const char* wish = std::getenv("EAGRE_PAIR_PRODUCTS");
    return wish != nullptr && *wish != '\0' ? std::strcmp(wish, "0") != 0 : __builtin_cpu_is("amd") != 0;
  }();
  return answer;
#else
  return false;
#endif
}

// The sum of its lanes is what the first and the second half of a row's group add to its products of pairs.
inline Floats pair_terms(Floats first, Floats second) {
  const Floats terms = fma(first, sub(broadcast(8.0f), second), mul(second, broadcast(-kMostByte)));
  return first_lanes(terms, 4 * kPairVectors, zeros());
}

}  // namespace eagre
