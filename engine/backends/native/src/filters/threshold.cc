#include "filters/threshold.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "vectors/padded_row.h"

namespace eagre {
namespace {

constexpr int64_t kFew = 16;  // tokens, which are sorted

// Integers that order as the floats do.
int32_t ordered(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}

float from_ordered(int32_t key) {
  const int32_t bits = key < 0 ? key ^ 0x7fffffff : key;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// A float between the two, or the lower one where no float lies between them.
float middle(float low, float high, Spacing spacing) {
  if (spacing == Spacing::kEven) {
    const float half = low + (high - low) * 0.5f;
    if (half > low && half < high) return half;
  }
  const int64_t a = ordered(low), b = ordered(high);
  return from_ordered(static_cast<int32_t>(a + (b - a) / 2));
}

struct Amount {
  double mass;
  int64_t count;
};

// How much reaches a threshold.
Amount amount_from(const Scores& scores, float threshold) {
  const Floats least = broadcast(threshold);
  int64_t count = 0;
  if (scores.masses == nullptr) {
    for (int64_t i = 0; i < scores.count; i += 16) {
      count += __builtin_popcount(bits_of(at_least(load(scores.keys + i), least)));
    }
    return {static_cast<double>(count), count};
  }
  const double mass = sum_of(scores.count, [&](int64_t i) {
    const Mask is_above = at_least(load(scores.keys + i), least);
    count += __builtin_popcount(bits_of(is_above));
    return choose(is_above, load(scores.masses + i), zeros());
  });
  return {mass, count};
}

// Copies the scores from `low` to below `high` into the memory, where they may lie already.
Scores between(const Scores& scores, float low, float high, const SearchMemory& memory) {
  const Floats from = broadcast(low), to = broadcast(high);
  int64_t count = 0;
  for (int64_t i = 0; i < scores.count; i += 16) {
    const Floats keys = load(scores.keys + i);
    const uint32_t bits = bits_of(at_least(keys, from)) & ~bits_of(at_least(keys, to));
    if (bits == 0) continue;
    if (scores.masses != nullptr) store_chosen(memory.masses + count, bits, load(scores.masses + i));
    count += store_chosen(memory.keys + count, bits, keys);
  }
  const int64_t end = padded(count);
  if (scores.masses != nullptr) std::fill(memory.masses + count, memory.masses + end, 0.0f);
  std::fill(memory.keys + count, memory.keys + end, -std::numeric_limits<float>::infinity());
  return {memory.keys, scores.masses == nullptr ? nullptr : memory.masses, end};
}

// Does the same as `largest_threshold` for a few scores, of which the first `count` are tokens.
float among_few(const Scores& scores, int64_t count, float low, double wanted) {
  int order[kFew];
  for (int i = 0; i < count; ++i) order[i] = i;
  std::sort(order, order + count, [&](int a, int b) { return scores.keys[a] > scores.keys[b]; });
  double mass = 0;
  for (int i = 0; i < count; ++i) {
    mass += scores.masses == nullptr ? 1.0 : scores.masses[order[i]];
    if (mass >= wanted) return scores.keys[order[i]];
  }
  return low;
}

}  // namespace

float largest_threshold(const Scores& scores, float low, float high, double wanted, Spacing spacing,
                        const SearchMemory& memory) {
  Scores left = scores;
  double left_behind = 0;                          // the mass of what is above all that is left
  Amount from_low{0, scores.count}, from_high{0, 0};  // of what is left; at first an upper bound
  while (true) {
    const int64_t inside = from_low.count - from_high.count;
    if (inside <= kFew || inside * 2 <= left.count) {
      left = between(left, low, high, memory);
      left_behind += from_high.mass;
      from_low.count = inside;
      from_high = {0, 0};
      if (inside <= kFew) return among_few(left, inside, low, wanted - left_behind);
    }
    const float candidate = middle(low, high, spacing);
    if (candidate == low) return low;
    const Amount amount = amount_from(left, candidate);
    const bool is_enough = left_behind + amount.mass >= wanted;
    (is_enough ? low : high) = candidate;
    (is_enough ? from_low : from_high) = amount;
    // The keys are not spread as was assumed, so the next middle is of the other kind.
    if ((from_low.count - from_high.count) * 8 > inside * 7) {
      spacing = spacing == Spacing::kEven ? Spacing::kExponential : Spacing::kEven;
    }
  }
}

}  // namespace eagre
