// The recurrence of gated delta-nets (Yang et al., "Gated Delta Networks", 2025): a step's tokens, in the order of the
// text, through a short convolution and a matrix for each head.
#pragma once

#include <cstdint>
#include <vector>

#include "recurrence/rows.h"
#include "runtime/pool.h"

namespace eagre {

constexpr int64_t kDeltaHeadMultiple = 16, kLargestDeltaHead = 256;  // features of a head

struct GatedDelta {
  const float* qkvz;   // [tokens][num_channels + value_size]: queries, keys, values, gates
  const float* beta;   // [tokens][num_heads]
  const float* alpha;  // [tokens][num_heads]; or logarithms of decays, [tokens][num_heads][key_dim]
  int64_t num_tokens, num_key_heads, num_heads, key_dim, value_dim;
  int64_t kernel;            // tokens that the convolution sees
  const float* convolution;  // [kernel][channels]
  const float* decay;        // [num_heads]
  const float* time_bias;    // [num_heads]
  const float* norm;         // [value_dim]
  float epsilon;
  float beta_scale;  // multiplies the sigmoid of beta
  bool has_row_decays;     // each row of a matrix has a decay of its own, by `alpha` alone
  bool has_sigmoid_gates;  // else those of silu
  bool is_tiled;    // head i has keys i modulo num_key_heads; else neighbouring heads share keys
  float* inputs;    // [entries][kernel - 1][channels], of the layer
  float* matrices;  // [entries][num_heads][key_dim][value_dim], of the layer

  int64_t value_size() const { return num_heads * value_dim; }
  int64_t num_channels() const { return 2 * num_key_heads * key_dim + value_size(); }
  int64_t key_head(int64_t head) const { return is_tiled ? head % num_key_heads : head / (num_heads / num_key_heads); }
};

// output: [tokens][value_size]; only rows of real tokens are written. Rows of one slot stand behind one another, in the
// order of the text. The arithmetic of a token depends on its sequence alone: not on the rows that it came in, nor on
// its neighbours, nor on the number of threads.
void run_gated_delta(Pool& pool, const std::vector<RecurrentRow>& rows, const GatedDelta& layer, float* output);

}  // namespace eagre
