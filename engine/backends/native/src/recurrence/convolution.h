// The short convolution of recurrent layers: each channel of a token with the same channel of the tokens before it.
#pragma once

#include <cstdint>
#include <vector>

#include "recurrence/rows.h"
#include "runtime/pool.h"

namespace eagre {

constexpr int64_t kLargestKernel = 64;  // tokens that a convolution sees, its own included; 2 at least
constexpr int64_t kChannelMultiple = 16;

struct Convolution {
  const float* x;  // [tokens][width], with the channels from column `first` on
  int64_t width, first, channels;
  int64_t kernel;        // tokens that it sees
  const float* weights;  // [kernel][channels]
  const float* bias;     // [channels], or null
  float* inputs;         // [entries][kernel - 1][channels], of the layer
  bool has_silu = true;  // of the sums
};

// output: [tokens][channels], the sums or silu of them; only rows of real tokens are written.
void run_convolution(Pool& pool, const std::vector<RecurrentRow>& rows, const std::vector<Sequence>& sequences,
                     const Convolution& layer, float* output);

}  // namespace eagre
