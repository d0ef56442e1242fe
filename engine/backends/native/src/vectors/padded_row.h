// A row of numbers, one for each token of the vocabulary, padded to whole blocks.
#pragma once

#include <cstdint>

#include "isa/isa.h"

namespace eagre {

// How many numbers a block has. Sums are of float32 within a block and of float64 across blocks, always in the same order.
constexpr int64_t kRowBlock = 256;

inline int64_t padded(int64_t count) { return (count + kRowBlock - 1) / kRowBlock * kRowBlock; }

// The sum of a block's numbers, of which value(i) gives 16 from number i on.
template <class Value>
inline float block_sum(int64_t first, const Value& value) {
  Floats part[4] = {zeros(), zeros(), zeros(), zeros()};
  for (int64_t i = first; i < first + kRowBlock; i += 64) {
    EAGRE_UNROLL(4)
    for (int v = 0; v < 4; ++v) part[v] = add(part[v], value(i + 16 * v));
  }
  return sum(add(add(part[0], part[1]), add(part[2], part[3])));
}

// The same over a padded row.
template <class Value>
inline double sum_of(int64_t count, const Value& value) {
  double total = 0;
  for (int64_t block = 0; block < count; block += kRowBlock) total += block_sum(block, value);
  return total;
}

// Copies a row of logits and pads it with -infinity; returns whether one of them is NaN.
bool copy_row(const float* logits, int64_t count, float* row);

// The largest number of each of 64 interleaved parts of a padded row.
struct Peaks {
  static constexpr int kParts = 64;
  float parts[kParts];

  float best() const;
  // A bound that the rank-th largest number of the row reaches, and rarely exceeds by much; rank is 1 to kParts.
  float at_most(int rank) const;
};

Peaks peaks_of(const float* row, int64_t count);

// The first place of the row's largest number.
int64_t first_best(const float* row, int64_t count, float best);

}  // namespace eagre
