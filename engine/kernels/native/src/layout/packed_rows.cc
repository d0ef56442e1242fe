#include "layout/packed_rows.h"

#include <algorithm>
#include <cstring>

#include "isa/reductions.h"
#include "layout/pairs.h"

namespace eagre {
namespace {

constexpr int kGroupsInline = 256;  // the caller packs so few itself: handing them out costs more
constexpr int kRowsPerTask = 8;     // rows of a block share lines of memory, which two threads should not write by turns

// Whole numbers in the lanes of x. Where one is not finite, the scale beside it is NaN, and any number will do.
void store_as_ints(int32_t* to, int stride, int count, Floats x) {
  alignas(64) int32_t lanes[kTile];
  store_ints(lanes, to_nearest_ints(x));
  for (int i = 0; i < count; ++i) to[i * stride] = lanes[i];
}

}  // namespace

PackedRows PackedRows::blocks(int begin, int end) const {
  PackedRows part = *this;
  const size_t at = first_group(begin);
  part.num_rows_ = std::min(num_rows_, end * kBlockRows) - begin * kBlockRows;
  for (int kind = 0; kind < kNumActivations; ++kind) {
    if (values_[kind] != nullptr) part.values_[kind] = values_[kind] + at * group_bytes(static_cast<Activations>(kind));
  }
  if (scales_ != nullptr) part.scales_ = scales_ + at;
  if (offsets_ != nullptr) part.offsets_ = offsets_ + at;
  if (offset_marks_ != nullptr) part.offset_marks_ = offset_marks_ + begin * kBlockRows / kMarkRows;
  if (pair_sums_ != nullptr) part.pair_sums_ = pair_sums_ + at;
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
  offsets_ = nullptr;
  offset_marks_ = nullptr;
  num_offset_groups_ = 0;
  pair_sums_ = nullptr;
  halves_are_asked_for_ = false;
  for (int i = 0; i < weights.num_parts; ++i) {
    const Layout layout = layout_of(weights.parts[i].format);
    const Activations activations = weights.parts[i].activations;
    const int kind = static_cast<int>(activations), sums = static_cast<int>(layout.sums);
    values_[kind] = values_memory_[kind].take<std::byte>(groups * group_bytes(activations));
    if (activations != Activations::kInt8) continue;
    scales_ = scales_memory_.take<float>(groups);
    offsets_ = offsets_memory_.take<float>(groups);
    marks_stride_ = num_blocks() * kBlockRows / kMarkRows;
    offset_marks_ = offset_marks_memory_.take<uint8_t>(size_t{1} * num_groups_ * marks_stride_);
    if (has_pair_kernel(weights.parts[i].format) && num_rows_ >= kLeastRowsOfPairs && pairs_are_faster()) {
      pair_sums_ = pair_sums_memory_.take<int32_t>(groups);
    }
    sums_[sums] = sums_memory_[sums].take<int32_t>(groups * (is_of_halves(layout.sums) ? 2 : 1));
    halves_are_asked_for_ |= is_of_halves(layout.sums);
  }
  if (offset_marks_ != nullptr) std::memset(offset_marks_, 0, size_t{1} * num_groups_ * marks_stride_);
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
  if (offset_marks_ != nullptr) find_offset_groups();
}

void RowPacker::find_offset_groups() {
  offset_groups_ = offset_groups_memory_.take<int32_t>(num_groups_);
  for (int group = 0; group < num_groups_; ++group) {
    const uint8_t* marks = offset_marks_ + group * marks_stride_;
    if (std::any_of(marks, marks + marks_stride_, [](uint8_t mark) { return mark != 0; })) {
      offset_groups_[num_offset_groups_++] = group;
    }
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
    const Place place{first + size_t{1} * group * rows_of(block), rows_of(block), count, row, group};
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
  Floats of_group[kTile], smallest[kTile], halves[kTile], of_pairs[kTile];
  for (int i = 0; i < count; ++i) {
    const Floats low = load(x + i * kGroup), high = load(x + i * kGroup + kTile);
    of_group[i] = max(low, high);
    smallest[i] = min(low, high);
  }
  for (int i = count; i < kTile; ++i) of_group[i] = smallest[i] = halves[i] = of_pairs[i] = zeros();
  const Rounding rounding(smallest_of_each(smallest), largest_of_each(of_group));
  alignas(64) float scales[kTile], offsets[kTile], inverses[kTile];
  store(scales, rounding.scales);
  store(offsets, rounding.offsets);
  store(inverses, div(broadcast(1.0f), rounding.scales));
  int8_t* to = reinterpret_cast<int8_t*>(values_[static_cast<int>(Activations::kInt8)]) + place.at * kGroup;
  for (int i = 0; i < count; ++i, to += place.stride * kGroup) {
    const Floats inverse = broadcast(inverses[i]), offset = broadcast(offsets[i]);
    const Floats low = round_to_integer(mul(sub(load(x + i * kGroup), offset), inverse));
    const Floats high = round_to_integer(mul(sub(load(x + i * kGroup + kTile), offset), inverse));
    store_bytes(to, low);
    store_bytes(to + kTile, high);
    if (pair_sums_ != nullptr) of_pairs[i] = pair_terms(low, high);
    if (halves_are_asked_for_) halves[i] = low;
    of_group[i] = add(low, high);
  }
  float* const scales_to = scales_ + place.at;
  for (int i = 0; i < count; ++i) scales_to[i * place.stride] = scales[i];
  // The rows of a mark are packed by one thread.
  static_assert(kRowsPerTask % kMarkRows == 0);
  for (uint32_t left = rounding.have_offsets; left != 0; left &= left - 1) {
    const int i = __builtin_ctz(left);
    offsets_[place.at + i * place.stride] = offsets[i];
    offset_marks_[(place.group + i) * marks_stride_ + place.row / kMarkRows] |= 1u << place.row % kMarkRows;
  }
  if (pair_sums_ != nullptr) store_as_ints(pair_sums_ + place.at, place.stride, count, sum_of_each(of_pairs));
  const Floats total = sum_of_each(of_group);
  trace = fma(total, zeros(), trace);
  if (!halves_are_asked_for_) return store_sums(place, rounding.scales, total, total);
  store_sums(place, rounding.scales, total, sum_of_each(halves));
}

void RowPacker::store_sums(Place place, Floats scale, Floats total, Floats first) {
  const Floats second = sub(total, first);
  const auto asked = [&](Sums kind) { return sums_[static_cast<int>(kind)]; };
  // `per_group` sums of a group lie side by side.
  const auto put_scaled = [&](int32_t* sums, int per_group, int part, Floats sum) {
    alignas(64) float lanes[kTile];
    store(lanes, mul(scale, sum));
    int32_t* to = sums + place.at * per_group + part;
    for (int i = 0; i < place.count; ++i, to += place.stride * per_group) std::memcpy(to, lanes + i, sizeof *to);
  };
  const auto put_zero = [&](int32_t* sums, int per_group, int part, Floats sum, float zero_point) {
    const Floats product = mul(broadcast(-zero_point), sum);
    store_as_ints(sums + place.at * per_group + part, place.stride * per_group, place.count, product);
  };
  const auto put_zero_halves = [&](int32_t* sums, float zero_point) {
    put_zero(sums, 2, 0, first, zero_point);
    put_zero(sums, 2, 1, second, zero_point);
  };
  if (int32_t* sums = asked(Sums::kScaled)) put_scaled(sums, 1, 0, total);
  if (int32_t* sums = asked(Sums::kZero8)) put_zero(sums, 1, 0, total, 8.0f);
  if (int32_t* sums = asked(Sums::kZero128)) put_zero(sums, 1, 0, total, 128.0f);
  if (int32_t* sums = asked(Sums::kHalvesScaled)) {
    put_scaled(sums, 2, 0, first);
    put_scaled(sums, 2, 1, second);
  }
  if (int32_t* sums = asked(Sums::kHalvesZero4)) put_zero_halves(sums, 4.0f);
  if (int32_t* sums = asked(Sums::kHalvesZero32)) put_zero_halves(sums, 32.0f);
}

}  // namespace eagre
