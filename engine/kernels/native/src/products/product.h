// y = f(x @ transpose(W)) for rows of activations and a packed matrix.
#pragma once

#include <cstddef>
#include <cstdint>

#include "products/activations.h"
#include "products/format.h"
#include "runtime/pool.h"

namespace eagre {

struct Matrix {
  Format format;
  const std::byte* blocks;  // [tiles][groups][block_bytes(format)]
  int64_t num_tiles;
  int num_groups;
};

// Where the results of packed row r go: row index[r] of y.
struct Output {
  float* values;
  const int32_t* index;
  const float* addend;  // added to the product, laid out as `values`, which it may be; or null
  // Tiles alternate between a gate's and its partner's, and what is stored is silu(gate) * partner
  // (Shazeer, "GLU variants improve transformer", 2020), half as many outputs.
  bool is_gated;
  int64_t num_outputs;  // of a row of y; tiles may reach further
};

// A row's result is the same bit for bit whichever rows are beside it: each output sums its
// groups in order, and integer sums within a group are exact.
void multiply(Pool& pool, const Activations& x, const Matrix& weights, const Output& y);

}  // namespace eagre
