#include "products/packed_rows.h"

#include <algorithm>
#include <cfloat>
#include <cstring>

#include "isa/isa.h"
#include "vectors/magnitudes.h"

namespace eagre {
namespace {

constexpr int kRowsInline = 4;  // the caller packs so few itself: handing them out costs more

}  // namespace

void PackedRows::pack(Pool& pool, const RowSource& source, int num_inputs, Format format) {
  num_rows_ = source.num_rows;
  num_groups_ = num_inputs / kGroup;
  group_bytes_ = kGroup * (is_integer(format) ? 1 : format == Format::kBfloat16 ? 2 : 4);
  const size_t padded = size_t{1} * num_blocks() * kBlockRows;
  values_ = values_memory_.take<std::byte>(padded * num_groups_ * group_bytes_);
  if (is_integer(format)) {
    scales_ = scales_memory_.take<float>(padded * num_groups_);
    sums_ = sums_memory_.take<int32_t>(padded * num_groups_);
  }
  float* normed = normed_memory_.take<float>(size_t{1} * pool.num_threads() * num_inputs);
  const auto pack_one = [&](int64_t row, int thread) {
    pack_row(source, static_cast<int>(row), format, normed + size_t{1} * thread * num_inputs);
  };
  if (num_rows_ <= kRowsInline) {
    for (int row = 0; row < num_rows_; ++row) pack_one(row, 0);
  } else {
    pool.run(num_rows_, pack_one);
  }
}

void PackedRows::pack_row(const RowSource& source, int row, Format format, float* normed) {
  const int num_inputs = num_groups_ * kGroup;
  const float* x = source.values + int64_t{1} * source.index[row] * num_inputs;
  if (source.norm.kind != NormKind::kNone) {
    normalise(source.norm, x, num_inputs, normed);
    x = normed;
  }
  if (is_integer(format)) {
    quantise_row(x, row, format);
    return;
  }
  const int block = row / kBlockRows, within = row % kBlockRows, rows = rows_of(block);
  std::byte* to = values_ + (size_t{1} * block * kBlockRows * num_groups_ + within) * group_bytes_;
  for (int group = 0; group < num_groups_; ++group, x += kGroup, to += size_t{1} * rows * group_bytes_) {
    if (format == Format::kFloat32) {
      std::memcpy(to, x, group_bytes_);
    } else {
      store_bf16(reinterpret_cast<uint16_t*>(to), load(x));
      store_bf16(reinterpret_cast<uint16_t*>(to) + kTile, load(x + kTile));
    }
  }
}

void PackedRows::quantise_row(const float* x, int row, Format format) {
  const int num_inputs = num_groups_ * kGroup;
  const int block = row / kBlockRows, within = row % kBlockRows, rows = rows_of(block);
  const size_t first = size_t{1} * block * kBlockRows * num_groups_ + within;
  int8_t* values_to = reinterpret_cast<int8_t*>(values_) + first * kGroup;
  for (int group = 0; group < num_groups_; ++group) {
    const float* from = x + group * kGroup;
    // A scale is neither so small that its inverse overflows nor so small that it is flushed to zero.
    const float scale = std::max(largest_magnitude(from, kGroup) / kInt8Max, FLT_MIN);
    const Floats inverse = broadcast(1.0f / scale);
    int8_t* to = values_to + size_t{1} * group * rows * kGroup;
    store_bytes(to, mul(load(from), inverse));
    store_bytes(to + kTile, mul(load(from + kTile), inverse));
    const int total = static_cast<int>(sum(add(load_bytes(to), load_bytes(to + kTile))));
    const size_t at = first + size_t{1} * group * rows;
    scales_[at] = scale;
    if (has_minima(format)) {
      const float scaled = scale * static_cast<float>(total);
      std::memcpy(&sums_[at], &scaled, sizeof scaled);
    } else {
      sums_[at] = -zero_point(format) * total;
    }
  }
  // Quantised, a value that is not finite would look like any other. One scale that is NaN reaches all outputs.
  scales_[first] += not_finite(x, num_inputs);
}

}  // namespace eagre
