// Rows of activations, made ready for products: normalised, quantised and interleaved.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "products/format.h"
#include "runtime/pool.h"
#include "runtime/scratch.h"
#include "vectors/norms.h"

namespace eagre {

constexpr int kBlockRows = 16;  // rows that one pass over a tile of weights serves

// The rows of a block are padded to one of a few counts, for each of which there is a kernel.
constexpr int padded_rows(int rows) {
  return rows <= 2 ? rows : rows <= 4 ? 4 : rows <= 8 ? 8 : rows <= 12 ? 12 : kBlockRows;
}

// What is done to a row before it is multiplied.
struct RowSource {
  const float* values;   // [rows][num_inputs]
  const int32_t* index;  // [num_rows], which rows to take
  int num_rows;
  Norm norm;  // over the row
};

// Blocks of kBlockRows rows, each laid out as [group][row][...], so that what a kernel loads lies close together. Each
// group of int8 values has a scale: a value is scale * int8.
class PackedRows {
 public:
  void pack(Pool& pool, const RowSource& source, int num_inputs, Format format);

  int num_rows() const { return num_rows_; }
  int num_groups() const { return num_groups_; }
  int num_blocks() const { return (num_rows_ + kBlockRows - 1) / kBlockRows; }
  int rows_of(int block) const {  // padded
    return padded_rows(std::min(kBlockRows, num_rows_ - block * kBlockRows));
  }

  const std::byte* values(int block) const { return values_ + size_t{1} * block * kBlockRows * num_groups_ * group_bytes_; }
  const float* scales(int block) const { return scales_ + size_t{1} * block * kBlockRows * num_groups_; }
  const int32_t* sums(int block) const { return sums_ + size_t{1} * block * kBlockRows * num_groups_; }
  int group_bytes() const { return group_bytes_; }

 private:
  void pack_row(const RowSource& source, int row, Format format, float* normed);
  void quantise_row(const float* x, int row, Format format);

  int num_rows_ = 0, num_groups_ = 0, group_bytes_ = 0;
  std::byte* values_ = nullptr;
  float* scales_ = nullptr;
  int32_t* sums_ = nullptr;  // of a group's values, as the format's kernel adds them: int32, or scaled and float32
  Scratch values_memory_, scales_memory_, sums_memory_, normed_memory_;
};

}  // namespace eagre
