// DRY: penalties for tokens that would continue a repetition, as sampling/processors/dry.py describes them.
#pragma once

#include <cstdint>
#include <vector>

namespace eagre {

struct Dry {
  const uint32_t* breakers;  // a packed set of tokens
  float multiplier, base;
  int64_t allowed_length;
};

// What one thread keeps from row to row.
struct DryMemory {
  std::vector<int32_t> matches;  // as long as the longest sequence
  std::vector<int32_t> lengths;  // [vocab_size], all 0 between two rows
};

// Penalises the tokens that would continue a repetition at the end of the `count` tokens before `end`.
void penalise_repetition(const Dry& dry, const int32_t* end, int64_t count, DryMemory& memory, float* row,
                         int64_t vocab_size);

}  // namespace eagre
