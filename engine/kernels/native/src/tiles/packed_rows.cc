#include "tiles/packed_rows.h"

#include <algorithm>
#include <cfloat>
#include <cstring>

#include "isa/isa.h"
#include "vectors/magnitudes.h"

namespace eagre {
namespace {

constexpr int kRowsInline = 4;  // the caller packs so few itself: handing them out costs more

}  // namespace

void PackedRows::pack(Pool& pool, const RowSource& source, const Matrix& weights) {
  num_rows_ = source.num_rows;
  num_groups_ = weights.num_groups;
  const size_t groups = size_t{1} * num_blocks() * kBlockRows * num_groups_;
  std::fill_n(values_, kNumActivations, nullptr);
  std::fill_n(sums_, kNumSums, nullptr);
  halves_are_asked_for_ = false;
  for (int i = 0; i < weights.num_parts; ++i) {
    const Layout layout = layout_of(weights.parts[i].format);
    const int kind = static_cast<int>(layout.activations), sums = static_cast<int>(layout.sums);
    values_[kind] = values_memory_[kind].take<std::byte>(groups * group_bytes(layout.activations));
    if (layout.activations != Activations::kInt8) continue;
    scales_ = scales_memory_.take<float>(groups);
    sums_[sums] = sums_memory_[sums].take<int32_t>(groups * (is_of_halves(layout.sums) ? 2 : 1));
    halves_are_asked_for_ |= is_of_halves(layout.sums);
  }
  const int num_inputs = num_groups_ * kGroup;
  float* normed = normed_memory_.take<float>(size_t{1} * pool.num_threads() * num_inputs);
  const auto pack_one = [&](int64_t row, int thread) {
    pack_row(source, static_cast<int>(row), normed + size_t{1} * thread * num_inputs);
  };
  if (num_rows_ <= kRowsInline) {
    for (int row = 0; row < num_rows_; ++row) pack_one(row, 0);
  } else {
    pool.run(num_rows_, pack_one);
  }
}

void PackedRows::pack_row(const RowSource& source, int row, float* normed) {
  const int num_inputs = num_groups_ * kGroup;
  const float* x = source.values + int64_t{1} * source.index[row] * num_inputs;
  if (source.norm.kind != NormKind::kNone) {
    normalise(source.norm, x, num_inputs, normed);
    x = normed;
  }
  const auto asks_for = [&](Activations kind) { return values_[static_cast<int>(kind)] != nullptr; };
  if (asks_for(Activations::kInt8)) quantise_row(x, row);
  if (asks_for(Activations::kBfloat16)) copy_row(x, row, Activations::kBfloat16);
  if (asks_for(Activations::kFloat32)) copy_row(x, row, Activations::kFloat32);
}

void PackedRows::copy_row(const float* x, int row, Activations kind) {
  const int block = row / kBlockRows, within = row % kBlockRows, rows = rows_of(block);
  const size_t bytes = group_bytes(kind);
  std::byte* to = values_[static_cast<int>(kind)] + (first_group(block) + within) * bytes;
  for (int group = 0; group < num_groups_; ++group, x += kGroup, to += rows * bytes) {
    if (kind == Activations::kFloat32) {
      std::memcpy(to, x, bytes);
    } else {
      store_bf16(reinterpret_cast<uint16_t*>(to), load(x));
      store_bf16(reinterpret_cast<uint16_t*>(to) + kTile, load(x + kTile));
    }
  }
}

void PackedRows::quantise_row(const float* x, int row) {
  const int num_inputs = num_groups_ * kGroup;
  const int block = row / kBlockRows, within = row % kBlockRows, rows = rows_of(block);
  const size_t first = first_group(block) + within;
  int8_t* values_to = reinterpret_cast<int8_t*>(values_[static_cast<int>(Activations::kInt8)]) + first * kGroup;
  for (int group = 0; group < num_groups_; ++group) {
    const float* from = x + group * kGroup;
    // A scale is neither so small that its inverse overflows nor so small that it is flushed to zero.
    const float scale = std::max(largest_magnitude(from, kGroup) / kInt8Max, FLT_MIN);
    const Floats inverse = broadcast(1.0f / scale);
    int8_t* to = values_to + size_t{1} * group * rows * kGroup;
    store_bytes(to, mul(load(from), inverse));
    store_bytes(to + kTile, mul(load(from + kTile), inverse));
    const size_t at = first + size_t{1} * group * rows;
    scales_[at] = scale;
    const Floats low = load_bytes(to), high = load_bytes(to + kTile);
    const int total = static_cast<int>(sum(add(low, high)));
    store_sums(at, scale, total, halves_are_asked_for_ ? static_cast<int>(sum(low)) : 0);
  }
  // Quantised, a value that is not finite would look like any other. One scale that is NaN reaches all outputs.
  scales_[first] += not_finite(x, num_inputs);
}

// Of a row's group; `first` is the sum of its first half.
void PackedRows::store_sums(size_t at, float scale, int total, int first) {
  const int second = total - first;
  const auto to = [&](Sums kind) { return sums_[static_cast<int>(kind)]; };
  const auto scaled = [&](int32_t* place, int sum) {
    const float value = scale * static_cast<float>(sum);
    std::memcpy(place, &value, sizeof value);
  };
  if (int32_t* sums = to(Sums::kScaled)) scaled(sums + at, total);
  if (int32_t* sums = to(Sums::kZero8)) sums[at] = -8 * total;
  if (int32_t* sums = to(Sums::kZero128)) sums[at] = -128 * total;
  if (int32_t* sums = to(Sums::kHalvesScaled)) {
    scaled(sums + 2 * at, first);
    scaled(sums + 2 * at + 1, second);
  }
  if (int32_t* sums = to(Sums::kHalvesZero4)) {
    sums[2 * at] = -4 * first;
    sums[2 * at + 1] = -4 * second;
  }
  if (int32_t* sums = to(Sums::kHalvesZero32)) {
    sums[2 * at] = -32 * first;
    sums[2 * at + 1] = -32 * second;
  }
}

}  // namespace eagre
