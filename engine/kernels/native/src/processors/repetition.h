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

// Kept from row to row by one thread.
struct DryMemory {
  std::vector<int32_t> matches;  // as long as the longest sequence
  std::vector<int32_t> lengths;  // [vocab_size], between rows all 0
};

// Penalises what would continue the `count` tokens before `end`.
void penalise_repetition(const Dry& dry, const int32_t* end, int64_t count, DryMemory& memory, float* row,
                         int64_t vocab_size);

}  // namespace eagre
