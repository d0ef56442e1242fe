// Products of groups of integers with rows, group after group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "isa/isa.h"
#include "tiles/group.h"
#include "tiles/stream.h"

namespace eagre {

// Rows whose sums are added to by turns: a sum waits for its last addition. More than two leave too few registers, and where
// a vector of the sums is several registers, these wait for each other no more than rows would.
#ifdef __AVX512F__
constexpr int kSumsAtOnce = 2;
#else
constexpr int kSumsAtOnce = 1;
#endif

// The groups of a block of rows that a kernel works on.
struct RowGroups {
  const int8_t* values;  // [group][row][kGroup]
  const float* scales;   // [group][row]
  const int32_t* sums;   // [group][row][parts]

  RowGroups(const PackedRows& x, Sums kind, int block, int first) {
    const size_t at = size_t{1} * first * x.rows_of(block);
    values = reinterpret_cast<const int8_t*>(x.values(Activations::kInt8, block)) + at * kGroup;
    scales = x.scales(block) + at;
    sums = x.sums(kind, block) + at * (is_of_halves(kind) ? 2 : 1);
  }

  template <int R, int kParts>
  void advance() {
    values += R * kGroup;
    scales += R;
    sums += R * kParts;
  }
};

// Adds the products of a part of a group with one row, of which `dot` are the exact sums, to the row's totals.
template <bool kHasMinima>
[[gnu::always_inline]] inline Floats add_part(Floats total, Ints dot, Floats scales, Floats minima, Floats row_scale,
                                              Floats row_sum) {
  total = fma(to_floats(dot), mul(scales, row_scale), total);
  return kHasMinima ? fma(minima, row_sum, total) : total;
}
template <bool kHasMinima>
[[gnu::always_inline]] inline Floats add_part(Floats total, Ints dot, Floats scales, Floats minima, float row_scale,
                                              const int32_t* row_sum) {
  float sum = 0.0f;
  if constexpr (kHasMinima) std::memcpy(&sum, row_sum, sizeof sum);
  return add_part<kHasMinima>(total, dot, scales, minima, broadcast(row_scale), broadcast(sum));
}

// Adds the products of one group to the sums of R rows. Sums within a part of a group are exact.
template <int R, int kParts, bool kHasMinima, bool kSmall>
[[gnu::always_inline]] inline void add_group(const IntegerGroup<kParts, kHasMinima>& group, const RowGroups& rows,
                                             Floats (&total)[R]) {
  constexpr int kVectors = kVectorsOfBytes / kParts, kAtOnce = R < kSumsAtOnce ? R : kSumsAtOnce;
  static_assert(R % kAtOnce == 0);
  EAGRE_UNROLL(16)
  for (int first = 0; first < R; first += kAtOnce) {
    EAGRE_UNROLL(2)
    for (int part = 0; part < kParts; ++part) {
      const int32_t* own_sums = rows.sums + first * kParts + part;
      Ints dots[kAtOnce];
      EAGRE_UNROLL(16)
      for (int r = 0; r < kAtOnce; ++r) dots[r] = broadcast_int(kHasMinima ? 0 : own_sums[r * kParts]);
      EAGRE_UNROLL(8)
      for (int i = 0; i < kVectors; ++i) {
        const int vector = part * kVectors + i;
        EAGRE_UNROLL(16)
        for (int r = 0; r < kAtOnce; ++r) {
          dots[r] = dot4<kSmall>(dots[r], group.numbers[vector], rows.values + (first + r) * kGroup + 4 * vector);
        }
      }
      EAGRE_UNROLL(16)
      for (int r = 0; r < kAtOnce; ++r) {
        total[first + r] = add_part<kHasMinima>(total[first + r], dots[r], group.scales[part], group.minima[part],
                                                rows.scales[first + r], own_sums + r * kParts);
      }
    }
  }
}

template <Format F, int R>
void accumulate_packed(const std::byte* block, RowGroups rows, int num_groups, float* totals) {
  constexpr Shape kShape = shape_of(F);
  constexpr int kBlockGroups = layout_of(F).block_groups;
  Floats total[R];
  for (int r = 0; r < R; ++r) total[r] = load(totals + r * kTile);
  for (int g = 0; g < num_groups; g += kBlockGroups, block += block_bytes(F)) {
    const BlockReader<F> reader(block);
    for (int i = 0; i < kBlockGroups; ++i) {
      prefetch_far_behind<block_bytes(F), kBlockGroups>(block, i);
      typename BlockReader<F>::Group group;
      reader.read(i, group);
      add_group<R, kShape.parts, kShape.has_minima, kShape.is_small>(group, rows, total);
      rows.advance<R, kShape.parts>();
    }
  }
  for (int r = 0; r < R; ++r) store(totals + r * kTile, total[r]);
}

// Always inlined: GCC 12 has been seen to leave out calls of this function, whose results it thinks nobody reads.
template <Format F>
[[gnu::always_inline]] inline void unpack(const std::byte* block, int num_groups, UnpackedGroup* to) {
  constexpr int kBlockGroups = layout_of(F).block_groups;
  for (int g = 0; g < num_groups; g += kBlockGroups, block += block_bytes(F)) {
    const BlockReader<F> reader(block);
    for (int i = 0; i < kBlockGroups; ++i) {
      prefetch_behind<block_bytes(F), kBlockGroups>(block, i);
      typename BlockReader<F>::Group group;
      reader.read(i, group);
      group.store_unpacked(to[g + i]);
    }
  }
}

}  // namespace eagre
