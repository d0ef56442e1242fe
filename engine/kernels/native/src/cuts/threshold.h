// The search that top-k, top-p and typical-p share, without sorting the vocabulary.
#pragma once

#include <cstdint>

namespace eagre {

// Tokens with a key and a mass each; the count is a multiple of kRowBlock.
struct Scores {
  const float* keys;    // -infinity where there is no token
  const float* masses;  // not negative; null: each 1
  int64_t count;
};

// Where a search puts what is still in question, as many numbers each as there are scores; one place where the keys
// are the masses.
struct SearchMemory {
  float* keys;
  float* masses;
};

enum class Spacing { kEven, kExponential };  // how the keys lie, roughly; it decides where the search begins

// A threshold for the keys that as few as possible reach, such that what reaches it has a mass of `wanted` or more.
//
// `low` is one that surely does, `high` one that surely does not, with no key above it. Bisection with sums over what
// lies between; what is decided is left behind as soon as it is half of all.
float largest_threshold(const Scores& scores, float low, float high, double wanted, Spacing spacing,
                        const SearchMemory& memory);

}  // namespace eagre
