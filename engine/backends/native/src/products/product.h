// y = f(x @ transpose(W) + bias) for rows of activations and a packed matrix.
#pragma once

#include <cstddef>
#include <cstdint>

#include "layout/matrix.h"
#include "layout/packed_rows.h"
#include "products/finish.h"
#include "products/low_rank.h"
#include "runtime/pool.h"
#include "tiles/tile_kernel.h"

namespace eagre {

// Where the results of packed row r go: row index[r] of y.
struct Output {
  float* values;
  const int32_t* index;
  int64_t num_outputs;  // of a row of y; tiles may reach further
  const float* bias;    // [num_outputs], of a gated product [2 * num_outputs], the gate's first; or null
  Finish finish;        // of the sums, bias included
  float scale, softcap;  // of the finishes that have them
  // The first half of the matrix's tiles are gates, the second their partners, and what is stored is finish(gate) *
  // partner (Shazeer, "GLU variants improve transformer", 2020), which is half as many outputs.
  bool is_gated;
  const float* addend;  // added to what is finished, laid out as `values`, which it may be; or null
  // What adapters add to the sums of the packed rows from `first_row` on, which begin with row 0 of x; or null. Of a gated
  // product the outputs are first the gates, then their partners.
  const AdapterSums* adapted = nullptr;
  int first_row = 0;
};

constexpr int kStoredTiles = 4;  // neighbours whose results are stored together

// Floats that `multiply_tiles` works in.
size_t totals_size(const PackedRows& x);

// The part of a product that one task does: tiles of results from `begin` to `end`. `unpacked` is room for kChunkGroups.
void multiply_tiles(const PackedRows& x, const Matrix& weights, const Output& y, int64_t begin, int64_t end,
                    UnpackedGroup* unpacked, float* totals);

// A row's result is the same bit for bit whichever rows are beside it: each output adds its groups to its bias in their
// order, and then the offsets that groups have, and the integer sums within a group are exact.
void multiply(Pool& pool, const PackedRows& x, const Matrix& weights, const Output& y);

// Counts a product of so many rows as work of the present call, while kernels are timed.
void count_product(const Matrix& weights, int64_t num_rows);

}  // namespace eagre
