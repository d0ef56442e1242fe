// y = up(down(x)) for rows of activations, each with the pair of matrices of its adapter (Hu et al., "LoRA", 2021).
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/pool.h"

namespace eagre {

// A token of a step and its adapter; a slot below 0 is none, whose result is 0.
struct AdaptedToken {
  int32_t token;
  int32_t slot;
  float scale;
};

// The pairs of all slots, in one layer. The outputs are in parts, each with rows of `down` of its own.
struct LowRank {
  const float* down;  // of the first slot: [parts * rank][inputs]
  const float* up;    // of the first slot: [rank][outputs]
  int64_t down_stride, up_stride;  // from slot to slot
  const int32_t* ranks;  // of each slot, at most `rank`; 0: its adapter does not change this product
  int64_t rank;          // a multiple of kRankMultiple
  int64_t num_inputs, num_outputs;  // multiples of 16
  const int64_t* ends;  // of each part, among the outputs, multiples of 16; the last one is num_outputs
  int64_t num_parts;
};

constexpr int64_t kRankMultiple = 4;

// A row's result is the same bit for bit whichever rows are beside it.
void multiply_low_rank(Pool& pool, const std::vector<AdaptedToken>& tokens, const LowRank& pairs, const float* x,
                       float* y);

}  // namespace eagre
