// The selective state space of Mamba-2 (Dao and Gu, "Transformers are SSMs", 2024) and of Mamba (Gu and Dao, "Mamba",
// 2023): a step's tokens, in the order of the text, through a matrix for each head.
#pragma once

#include <cstdint>
#include <vector>

#include "recurrence/rows.h"
#include "runtime/pool.h"

namespace eagre {

constexpr int64_t kStateHeadMultiple = 16, kLargestStateHead = 256;  // features of a head, and of its state

struct StateSpace {
  const float* mixed;       // [tokens][mixed_width()]: values, then B and C of each group
  const float* gates;       // [tokens][gates_width], with the gates of the values from column first_gate on
  const float* time_steps;  // [tokens][num_steps()], before the bias and softplus
  int64_t num_tokens, num_heads, head_dim, num_groups, state_size, gates_width, first_gate;
  const float* decay;      // below 0: [num_heads], or by channel [state_size][value_size]
  const float* time_bias;  // [num_steps()]
  const float* skip;       // [num_steps()]: the share of a value that goes past the state
  const float* norm;       // [value_size], over the values of each group; null: none
  float epsilon, least_step, most_step;
  bool is_by_channel;  // a channel has a step and decays of its own (Mamba); else a head has (Mamba-2)
  bool norms_first;    // before the gates, not behind them
  float* matrices;     // [entries][num_heads][state_size][head_dim], of the layer

  int64_t value_size() const { return num_heads * head_dim; }
  int64_t mixed_width() const { return value_size() + 2 * num_groups * state_size; }
  int64_t num_steps() const { return is_by_channel ? value_size() : num_heads; }
};

// output: [tokens][value_size]; only rows of real tokens are written. As with run_gated_delta, the arithmetic of a token
// depends on its sequence alone.
void run_state_space(Pool& pool, const std::vector<RecurrentRow>& rows, const StateSpace& layer, float* output);

}  // namespace eagre
