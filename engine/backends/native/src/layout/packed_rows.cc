#include "layout/packed_rows.h"

#include <algorithm>
#include <cstring>

#include "isa/reductions.h"
#include "layout/pairs.h"

namespace eagre {

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
  begin(pool.num_threads(), source, weights);
  if (num_rows_ * num_groups_ <= kGroupsInline) {
    for (int task = 0; task < num_tasks(); ++task) pack_task(task, 0);
  } else {
    pool.run(num_tasks(), [&](int64_t task, int thread) { pack_task(task, thread); });
  }
  end();
}

void RowPacker::begin(int num_threads, const RowSource& source, const Matrix& weights) {
  source_ = source;
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
  normed_ = nullptr;
  if (source.norm.kind != NormKind::kNone) normed_ = normed_memory_.take<float>(num_threads * floats_of_thread());
}

void RowPacker::pack_task(int64_t task, int thread) {
  const int begin = static_cast<int>(task) * kRowsAtOnce, end = std::min(num_rows_, begin + kRowsAtOnce);
  pack_rows(begin, end, normed_ == nullptr ? nullptr : normed_ + thread * floats_of_thread());
}

void RowPacker::end() {
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

void RowPacker::pack_rows(int begin, int end, float* normed) {
  const int num_inputs = num_groups_ * kGroup;
  const float* rows[kRowsAtOnce];
  for (int row = begin; row < end; ++row) {
    const float*& x = rows[row - begin];
    x = source_.values + int64_t{1} * source_.index[row] * num_inputs;
    if (source_.norm.kind == NormKind::kNone) continue;
    float* const to = normed + size_t{1} * (row - begin) * num_inputs;
    normalise(source_.norm, x, num_inputs, to);
    x = to;
  }
  const auto asks_for = [&](Activations kind) { return values_[static_cast<int>(kind)] != nullptr; };
  if (asks_for(Activations::kInt8)) {
    // As many at a time as divide the lanes of a vector.
    for (int row = begin, count; row < end; row += count) {
      const int left = end - row;
      const float* const* const from = rows + (row - begin);
      count = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      switch (count) {
        case 1: quantise_rows<1>(from, row); break;
        case 2: quantise_rows<2>(from, row); break;
        case 4: quantise_rows<4>(from, row); break;
        default: quantise_rows<8>(from, row);
      }
    }
  }
  for (const Activations kind : {Activations::kBfloat16, Activations::kFloat32}) {
    if (!asks_for(kind)) continue;
    for (int row = begin; row < end; ++row) copy_row(rows[row - begin], row, kind);
  }
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

template <int kRows>
void RowPacker::quantise_rows(const float* const* rows, int first_row) {
  static_assert(kTile % kRows == 0 && kRows <= kRowsAtOnce);
  constexpr int kGroupsAtOnce = kTile / kRows;
  const int block = first_row / kBlockRows;
  Lanes lanes{first_row, first_group(block) + first_row % kBlockRows, rows_of(block), {}};
  Floats trace = zeros();
  for (int first = 0; first < num_groups_; first += kGroupsAtOnce) {
    // Behind the last group stands the same one again.
    for (int i = 0; i < kGroupsAtOnce; ++i) lanes.groups[i] = std::min(first + i, num_groups_ - 1);
    quantise_groups<kRows>(rows, lanes, trace);
  }
  // Quantised, a value that is not finite would look like any other. One scale that is NaN reaches all outputs.
  alignas(64) float traces[kTile];
  store(traces, trace);
  for (int lane = 0; lane < kTile; ++lane) scales_[lanes.first_place + lane % kRows] += traces[lane];
}

template <int kRows>
void RowPacker::quantise_groups(const float* const* rows, const Lanes& lanes, Floats& trace) {
  // What is found for each group lies in one lane of a vector, so that all groups are reduced and divided together.
  Floats of_group[kTile], smallest[kTile], halves[kTile], of_pairs[kTile];
  const float* from[kTile];
  EAGRE_UNROLL(16)
  for (int i = 0; i < kTile; ++i) {
    from[i] = rows[i % kRows] + lanes.groups[i / kRows] * kGroup;
    const Floats low = load(from[i]), high = load(from[i] + kTile);
    of_group[i] = max(low, high);
    smallest[i] = min(low, high);
  }
  const Rounding rounding(smallest_of_each(smallest), largest_of_each(of_group));
  alignas(64) float offsets[kTile], inverses[kTile];
  store(offsets, rounding.offsets);
  store(inverses, div(broadcast(1.0f), rounding.scales));
  int8_t* const values = reinterpret_cast<int8_t*>(values_[static_cast<int>(Activations::kInt8)]);
  // Read once: for all that the compiler knows, the bytes that are stored may lie in this object.
  const bool has_pairs = pair_sums_ != nullptr, has_halves = halves_are_asked_for_;
  for (int i = 0; i < kTile; ++i) {
    const Floats inverse = broadcast(inverses[i]), offset = broadcast(offsets[i]);
    const Floats low = round_to_integer(mul(sub(load(from[i]), offset), inverse));
    const Floats high = round_to_integer(mul(sub(load(from[i] + kTile), offset), inverse));
    int8_t* const to = values + (lanes.place(i / kRows) + i % kRows) * kGroup;
    store_bytes(to, low);
    store_bytes(to + kTile, high);
    if (has_pairs) of_pairs[i] = pair_terms(low, high);
    if (has_halves) halves[i] = low;
    of_group[i] = add(low, high);
  }
  put<kRows>(lanes, 1, 0, rounding.scales, scales_);
  put<kRows>(lanes, 1, 0, rounding.offsets, offsets_);
  if (rounding.have_offsets != 0) mark_offsets<kRows>(lanes, rounding.have_offsets);
  if (pair_sums_ != nullptr) put<kRows>(lanes, 1, 0, to_nearest_ints(sum_of_each(of_pairs)), pair_sums_);
  const Floats total = sum_of_each(of_group);
  trace = fma(total, zeros(), trace);
  put_sums<kRows>(lanes, rounding.scales, total, halves_are_asked_for_ ? sum_of_each(halves) : total);
}

template <int kRows, class Vector, class Number>
void RowPacker::put(const Lanes& lanes, int per_group, int part, Vector x, Number* to) {
  static_assert(sizeof(Number) == sizeof(float));
  alignas(64) Number numbers[kTile];
  static_assert(sizeof numbers == sizeof x);
  std::memcpy(numbers, &x, sizeof numbers);
  for (int i = 0; i < kTile / kRows; ++i) {
    Number* const place = to + lanes.place(i) * per_group + part;
    if (per_group == 1) {
      std::memcpy(place, numbers + i * kRows, kRows * sizeof(Number));
    } else {
      for (int r = 0; r < kRows; ++r) place[r * per_group] = numbers[i * kRows + r];
    }
  }
}

template <int kRows>
void RowPacker::mark_offsets(const Lanes& lanes, uint32_t have_offsets) {
  // The rows of a mark are packed by one thread.
  static_assert(kRowsAtOnce == kMarkRows);
  for (uint32_t left = have_offsets; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left), row = lanes.first_row + lane % kRows;
    offset_marks_[lanes.groups[lane / kRows] * marks_stride_ + row / kMarkRows] |= 1u << row % kMarkRows;
  }
}

template <int kRows>
void RowPacker::put_sums(const Lanes& lanes, Floats scale, Floats total, Floats first) {
  const Floats second = sub(total, first);
  const auto asked = [&](Sums kind) { return sums_[static_cast<int>(kind)]; };
  // Where a row is not finite, the scale beside a sum is NaN, and any number will do.
  const auto zeros_of = [](Floats sum, float zero_point) { return to_nearest_ints(mul(broadcast(-zero_point), sum)); };
  const auto put_zero_halves = [&](int32_t* sums, float zero_point) {
    put<kRows>(lanes, 2, 0, zeros_of(first, zero_point), sums);
    put<kRows>(lanes, 2, 1, zeros_of(second, zero_point), sums);
  };
  if (int32_t* sums = asked(Sums::kScaled)) put<kRows>(lanes, 1, 0, mul(scale, total), sums);
  if (int32_t* sums = asked(Sums::kZero8)) put<kRows>(lanes, 1, 0, zeros_of(total, 8.0f), sums);
  if (int32_t* sums = asked(Sums::kZero12)) put<kRows>(lanes, 1, 0, zeros_of(total, 12.0f), sums);
  if (int32_t* sums = asked(Sums::kZero128)) put<kRows>(lanes, 1, 0, zeros_of(total, 128.0f), sums);
  if (int32_t* sums = asked(Sums::kHalvesScaled)) {
    put<kRows>(lanes, 2, 0, mul(scale, first), sums);
    put<kRows>(lanes, 2, 1, mul(scale, second), sums);
  }
  if (int32_t* sums = asked(Sums::kHalvesZero4)) put_zero_halves(sums, 4.0f);
  if (int32_t* sums = asked(Sums::kHalvesZero32)) put_zero_halves(sums, 32.0f);
  if (int32_t* sums = asked(Sums::kHalvesZero128)) put_zero_halves(sums, 128.0f);
}

}  // namespace eagre
