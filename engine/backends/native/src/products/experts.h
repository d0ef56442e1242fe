// Mixtures of experts (Shazeer et al., "Outrageously Large Neural Networks", 2017) in one call for a layer.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/matrix.h"
#include "products/finish.h"
#include "runtime/pool.h"

namespace eagre {

// What one expert does to a row: share * (down @ (finish(gate @ x + bias) * (up @ x + bias)) + bias), or without gates
// share * (down @ finish(up @ x + bias) + bias).
struct Expert {
  Matrix gate_up, down;       // the first is the up alone where there are no gates
  const float* gate_up_bias;  // [2 * inner], the gate's first, or [inner] without gates; or null
  const float* down_bias;     // [hidden], or null
};

struct ExpertRows {
  const float* x;  // [tokens][hidden]
  float* y;        // [tokens][hidden], to which the experts' results are added
  int64_t hidden, inner;
  const std::vector<int32_t>& tokens;  // those that count
  const int32_t* picks;                // [tokens][num_picked], experts, different ones for each token
  const float* shares;                 // [tokens][num_picked]
  int num_picked;
  bool is_gated;
  Finish finish;
  float scale, softcap;  // of the finish, where it has them
};

// experts: by number; those that no token picks are not looked at. A row's result is the same bit for bit whichever rows
// are beside it: its experts are added in the order of their numbers, and each as `multiply` does.
void add_experts(Pool& pool, const ExpertRows& rows, const std::vector<Expert>& experts);

}  // namespace eagre
