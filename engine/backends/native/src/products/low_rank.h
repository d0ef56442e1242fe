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

// The pairs of all slots, in one layer, of float32 or of bfloat16. The outputs are in parts, each with columns of `down`
// of its own.
template <class Number>
struct LowRank {
  const Number* down;  // of the first slot: [inputs][parts * rank]
  const Number* up;    // of the first slot: [rank][outputs]
  int64_t down_stride, up_stride;  // from slot to slot
  const int32_t* ranks;  // of each slot, at most `rank`; 0: its adapter does not change this product
  int64_t rank;          // a multiple of kRankMultiple
  int64_t num_inputs, num_outputs;  // multiples of 16
  const int64_t* ends;  // of each part, among the outputs, multiples of 16; the last one is num_outputs
  int64_t num_parts;
};

constexpr int64_t kRankMultiple = 16;

// Sorts the tokens by their slots. A row's result is the same bit for bit whichever rows are beside it.
template <class Number>
void multiply_low_rank(Pool& pool, std::vector<AdaptedToken>& tokens, const LowRank<Number>& pairs, const float* x,
                       float* y);

extern template void multiply_low_rank(Pool&, std::vector<AdaptedToken>&, const LowRank<float>&, const float*, float*);
extern template void multiply_low_rank(Pool&, std::vector<AdaptedToken>&, const LowRank<uint16_t>&, const float*, float*);

}  // namespace eagre
