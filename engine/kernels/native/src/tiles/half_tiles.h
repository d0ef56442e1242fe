// Tiles of integers on processors with sixteen vector registers of eight lanes, eight outputs at a time.
//
// Eight outputs of a group are eight registers, so that they stay there while all rows of a block meet them; the rows'
// totals are what is loaded and stored, which costs these processors less. Sums are the same exact integers, and behind
// them come the same floating point operations in the same order as for sixteen outputs at once.
#pragma once

#include "isa/isa.h"

#ifdef EAGRE_HAS_HALVES

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tiles/accumulate.h"

namespace eagre {

constexpr int kHalfTile = kTile / 2;
constexpr int kLeastRowsOfHalves = 2;  // one row loads and stores as much for its totals as it saves

// How the numbers of a part of a group are multiplied: as unsigned bytes, or, where the zero point is 128, as magnitude and
// sign. Where 16 bits hold the sum of several products, so many are added up before they are widened.
template <Format F>
struct HalfKind {
  static constexpr Layout kLayout = layout_of(F);
  static constexpr int kBits = kLayout.low_bits + kLayout.high_bits;
  static constexpr bool kIsSigned = kBits == 8 && !kLayout.has_minima && kLayout.zero_point == 128;
  // Sums of two products of numbers below 2^kBits and of int8.
  static constexpr int kMostAtOnce = 32767 / (2 * 128 * ((1 << kBits) - 1));
  static constexpr int kAtOnce = kMostAtOnce >= 8 ? 8 : kMostAtOnce >= 4 ? 4 : kMostAtOnce >= 2 ? 2 : 1;
  static constexpr bool kIsHere = kBits < 8 || kIsSigned;
};

// Adds the products of half the outputs of a group to the sums of R rows.
template <Format F, int R>
[[gnu::always_inline]] inline void add_half(const UnpackedGroup& group, int first, const RowGroups& rows, float* totals) {
  using Kind = HalfKind<F>;
  constexpr int kParts = Kind::kLayout.parts, kVectors = kVectorsOfBytes / kParts;
  constexpr int kAtOnce = Kind::kAtOnce < kVectors ? Kind::kAtOnce : kVectors;
  const uint8_t* const bytes = group.numbers + 4 * first;
  HalfWords numbers[kVectorsOfBytes];
  EAGRE_UNROLL(8)
  for (int v = 0; v < kVectorsOfBytes; ++v) {
    const HalfWords loaded = load_half_words(bytes + 64 * v);
    numbers[v] = Kind::kIsSigned ? magnitudes(loaded) : loaded;
  }
  for (int r = 0; r < R; ++r) {
    HalfFloats total = load_half(totals + r * kTile + first);
    EAGRE_UNROLL(2)
    for (int part = 0; part < kParts; ++part) {
      const int32_t* const row_sum = rows.sums + r * kParts + part;
      const int8_t* const values = rows.values + r * kGroup + 4 * kVectors * part;
      HalfWords dot = broadcast_half_int(Kind::kLayout.has_minima || Kind::kIsSigned ? 0 : *row_sum);
      EAGRE_UNROLL(8)
      for (int v = 0; v < kVectors; v += kAtOnce) {
        HalfWords pairs;
        EAGRE_UNROLL(8)
        for (int i = 0; i < kAtOnce; ++i) {
          const int vector = part * kVectors + v + i;
          const HalfWords other = broadcast_half_word(values + 4 * (v + i));
          const HalfWords some = Kind::kIsSigned ? pairs_of(numbers[vector], with_signs(other, bytes + 64 * vector))
                                                 : pairs_of(numbers[vector], other);
          pairs = i == 0 ? some : add_pairs(pairs, some);
        }
        dot = add_widened(dot, pairs);
      }
      total = fma_half(to_half_floats(dot), mul_half(load_half(group.scales[part] + first), rows.scales[r]), total);
      if constexpr (Kind::kLayout.has_minima) {
        float sum;
        std::memcpy(&sum, row_sum, sizeof sum);
        total = fma_half(load_half(group.minima[part] + first), broadcast_half(sum), total);
      }
    }
    store_half(totals + r * kTile + first, total);
  }
}

template <Format F, int R>
void accumulate_halves(const std::byte* block, RowGroups rows, int num_groups, float* totals) {
  constexpr int kBlockGroups = layout_of(F).block_groups;
  UnpackedGroup unpacked;
  for (int g = 0; g < num_groups; g += kBlockGroups, block += block_bytes(F)) {
    const BlockReader<F> reader(block);
    for (int i = 0; i < kBlockGroups; ++i) {
      prefetch_behind<block_bytes(F), kBlockGroups>(block, i);
      typename BlockReader<F>::Group group;
      reader.read(i, group);
      if constexpr (HalfKind<F>::kIsSigned) {
        for (Words& numbers : group.numbers) numbers = less_128(numbers);
      }
      group.store_unpacked(unpacked);
      add_half<F, R>(unpacked, 0, rows, totals);
      add_half<F, R>(unpacked, kHalfTile, rows, totals);
      rows.advance<R, layout_of(F).parts>();
    }
  }
}

}  // namespace eagre

#endif  // EAGRE_HAS_HALVES
