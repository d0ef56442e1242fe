// The search that top-k, top-p and typical-p share, without sorting the vocabulary.
#pragma once

#include <cstdint>

namespace eagre {

// Tokens, each with a key and a mass; their number is a multiple of kRowBlock.
struct Scores {
  const float* keys;    // -infinity where there is no token
  const float* masses;  // not negative; null: each 1
  int64_t count;
};

// Where a search keeps the scores that are still in question. Each array holds as many numbers as there are scores; both
// may be the same array where the keys are the masses.
struct SearchMemory {
  float* keys;
  float* masses;
};

enum class Spacing { kEven, kExponential };  // roughly how the keys are spread; it decides where the search begins

// The largest threshold for which the tokens whose keys reach it have a mass of `wanted` or more together.
//
// The mass from `low` on surely suffices; the mass from `high` on surely does not, and no key lies above `high`. The
// threshold is found by bisection with sums over the keys between the two bounds. Keys that are decided are dropped as
// soon as they are half of all.
float largest_threshold(const Scores& scores, float low, float high, double wanted, Spacing spacing,
                        const SearchMemory& memory);

}  // namespace eagre
