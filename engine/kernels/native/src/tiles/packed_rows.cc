#include "tiles/packed_rows.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "isa/reductions.h"
#include "vectors/magnitudes.h"

namespace eagre {
namespace {

constexpr int kGroupsInline = 256;  // the caller packs so few itself: handing them out costs more
constexpr int kRowsPerTask = 8;     // rows of a block share lines of memory, which two threads should not write by turns

}  // namespace

PackedRows PackedRows::blocks(int begin, int end) const {
  PackedRows part = *this;
  const size_t at = first_group(begin);
  part.num_rows_ = std::min(num_rows_, end * kBlockRows) - begin * kBlockRows;
  for (int kind = 0; kind < kNumActivations; ++kind) {
    if (values_[kind] != nullptr) part.values_[kind] = values_[kind] + at * group_bytes(static_cast<Activations>(kind));
  }
  if (scales_ != nullptr) part.scales_ = scales_ + at;
  for (int kind = 0; kind < kNumSums; ++kind) {
    const int parts = is_of_halves(static_cast<Sums>(kind)) ? 2 : 1;
    if (sums_[kind] != nullptr) part.sums_[kind] = sums_[kind] + at * parts;
  }
  return part;
}

void RowPacker::pack(Pool& pool, const RowSource& source, const Matrix& weights) {
  num_rows_ = source.num_rows;
  num_groups_ = weights.num_groups;
  const size_t groups = size_t{1} * num_blocks() * kBlockRows * num_groups_;
  std::fill_n(values_, kNumActivations, nullptr);
  std::fill_n(sums_, kNumSums, nullptr);
  scales_ = nullptr;
  halves_are_asked_for_ = false;
  for (int i = 0; i < weights.num_parts; ++i) {
    const Layout layout = layout_of(weights.parts[i].format);
    const Activations activations = weights.parts[i].activations;
    const int kind = static_cast<int>(activations), sums = static_cast<int>(layout.sums);
    values_[kind] = values_memory_[kind].take<std::byte>(groups * group_bytes(activations));
    if (activations != Activations::kInt8) continue;
    scales_ = scales_memory_.take<float>(groups);
    sums_[sums] = sums_memory_[sums].take<int32_t>(groups * (is_of_halves(layout.sums) ? 2 : 1));
    halves_are_asked_for_ |= is_of_halves(layout.sums);
  }
  const int num_inputs = num_groups_ * kGroup;
  float* normed = normed_memory_.take<float>(size_t{1} * pool.num_threads() * num_inputs);
  const auto pack_rows = [&](int begin, int end, int thread) {
    for (int row = begin; row < end; ++row) pack_row(source, row, normed + size_t{1} * thread * num_inputs);
  };
  if (num_rows_ * num_groups_ <= kGroupsInline) {
    pack_rows(0, num_rows_, 0);
  } else {
    pool.run((num_rows_ + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int thread) {
      const int begin = static_cast<int>(task) * kRowsPerTask;
      pack_rows(begin, std::min(num_rows_, begin + kRowsPerTask), thread);
    });
  }
}

void RowPacker::pack_row(const RowSource& source, int row, float* normed) {
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

void RowPacker::copy_row(const float* x, int row, Activations kind) {
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

void RowPacker::quantise_row(const float* x, int row) {
  const int block = row / kBlockRows, within = row % kBlockRows;
  const size_t first = first_group(block) + within;
  Floats trace = zeros();
  for (int group = 0; group < num_groups_; group += kTile) {
    const int count = std::min(kTile, num_groups_ - group);
    const Place place{first + size_t{1} * group * rows_of(block), rows_of(block), count};
    if (count == kTile) {
      quantise_groups<true>(x + group * kGroup, place, trace);
    } else {
      quantise_groups<false>(x + group * kGroup, place, trace);
    }
  }
  // Quantised, a value that is not finite would look like any other. One scale that is NaN reaches all outputs.
  scales_[first] += sum(trace);
}

template <bool kIsWhole>
void RowPacker::quantise_groups(const float* x, Place place, Floats& trace) {
  const int count = kIsWhole ? kTile : place.count;
  // What is found for each group lies in one lane of a vector, so that all groups are reduced and divided together.
  Floats of_group[kTile];
  Floats low_trace = zeros(), high_trace = zeros();
  for (int i = 0; i < count; ++i) {
    const Floats low = load(x + i * kGroup), high = load(x + i * kGroup + kTile);
    of_group[i] = max(abs(low), abs(high));
    low_trace = fma(low, zeros(), low_trace);
    high_trace = fma(high, zeros(), high_trace);
  }
  trace = add(trace, add(low_trace, high_trace));
  for (int i = count; i < kTile; ++i) of_group[i] = zeros();
  // A scale is neither so small that its inverse overflows nor so small that it is flushed to zero.
  const Floats scale = max(div(largest_of_each(of_group), broadcast(kInt8Max)), broadcast(FLT_MIN));
  alignas(64) float scales[kTile], inverses[kTile];
  store(scales, scale);
  store(inverses, div(broadcast(1.0f), scale));
  Floats low_of_group[kTile];
  int8_t* to = reinterpret_cast<int8_t*>(values_[static_cast<int>(Activations::kInt8)]) + place.at * kGroup;
  for (int i = 0; i < count; ++i, to += place.stride * kGroup) {
    const Floats inverse = broadcast(inverses[i]);
    const Floats low = round_to_integer(mul(load(x + i * kGroup), inverse));
    const Floats high = round_to_integer(mul(load(x + i * kGroup + kTile), inverse));
    store_bytes(to, low);
    store_bytes(to + kTile, high);
    if (halves_are_asked_for_) low_of_group[i] = low;
    of_group[i] = add(low, high);
  }
  float* const scales_to = scales_ + place.at;
  for (int i = 0; i < count; ++i) scales_to[i * place.stride] = scales[i];
  const Floats total = sum_of_each(of_group);
  if (!halves_are_asked_for_) return store_sums(place, scale, total, total);
  for (int i = count; i < kTile; ++i) low_of_group[i] = zeros();
  store_sums(place, scale, total, sum_of_each(low_of_group));
}

void RowPacker::store_sums(Place place, Floats scale, Floats total, Floats first) {
  const Floats second = sub(total, first);
  // `per_group` sums of a group lie side by side.
  const auto put = [&](int32_t* sums, int per_group, int part, Floats x, bool as_int) {
    alignas(64) float lanes[kTile];
    store(lanes, x);
    int32_t* to = sums + place.at * per_group + part;
    for (int i = 0; i < place.count; ++i, to += place.stride * per_group) {
      if (as_int) {
        *to = std::abs(lanes[i]) < 0x1p24f ? static_cast<int32_t>(lanes[i]) : 0;  // where it is not finite, its scale is NaN
      } else {
        std::memcpy(to, lanes + i, sizeof *to);
      }
    }
  };
  const auto put_halves = [&](int32_t* sums, Floats factor, bool as_int) {
    put(sums, 2, 0, mul(factor, first), as_int);
    put(sums, 2, 1, mul(factor, second), as_int);
  };
  const auto asked = [&](Sums kind) { return sums_[static_cast<int>(kind)]; };
  if (int32_t* sums = asked(Sums::kScaled)) put(sums, 1, 0, mul(scale, total), false);
  if (int32_t* sums = asked(Sums::kZero8)) put(sums, 1, 0, mul(broadcast(-8.0f), total), true);
  if (int32_t* sums = asked(Sums::kZero128)) put(sums, 1, 0, mul(broadcast(-128.0f), total), true);
  if (int32_t* sums = asked(Sums::kHalvesScaled)) put_halves(sums, scale, false);
  if (int32_t* sums = asked(Sums::kHalvesZero4)) put_halves(sums, broadcast(-4.0f), true);
  if (int32_t* sums = asked(Sums::kHalvesZero32)) put_halves(sums, broadcast(-32.0f), true);
}

}  // namespace eagre
