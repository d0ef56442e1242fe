// Tiles of integers on processors with sixteen vector registers of eight lanes, a few rows at a time.
//
// The sums of four rows with sixteen outputs are eight registers, so that four words of the rows and two vectors of the
// group are loaded for eight products: a processor that multiplies twice a cycle loads no more than twice a cycle. What the
// sums leave free is too little for a group, so groups are unpacked to memory, for all rows there are, and stay in the
// first cache. (Numbers of 5 and 6 bits need twice as many sums, so that two rows meet them at once; and one row takes a
// group from the registers into which it is unpacked.) Sums are the same exact integers as in registers of sixteen lanes,
// and behind them come the same floating point operations in the same order.
#pragma once

#include "isa/isa.h"

#ifdef EAGRE_HAS_HALVES

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "layout/rounding.h"
#include "tiles/accumulate.h"

namespace eagre {

#ifdef EAGRE_HAS_HALF_DOTS
constexpr bool kHasHalfDots = true;
#else
constexpr bool kHasHalfDots = false;
#endif

// How the numbers of a part of a group are multiplied: as unsigned bytes, or, where the zero point is 128, as magnitude and
// sign. Where 16 bits hold the sum of several products, so many are added up before they are widened. Where one instruction
// adds products up in 32 bits, none of this matters.
template <Format F>
struct QuadKind {
  static constexpr Layout kLayout = layout_of(F);
  static constexpr int kBits = bits_of_number(F);
  static constexpr bool kIsSigned = !kHasHalfDots && kBits == 8 && !kLayout.has_minima && kLayout.zero_point == 128;
  static constexpr bool kIsHere = kHasHalfDots || kBits < 8 || kIsSigned;
  static constexpr int kVectors = kVectorsOfBytes / kLayout.parts;  // of a part
  // A product is the sum of two, of numbers below 2^kBits and of the bytes of a row.
  static constexpr int kMostAtOnce = 32767 / (2 * static_cast<int>(kMostByte) * ((1 << kBits) - 1));
  static constexpr int kAtOnce = kMostAtOnce >= kVectors ? kVectors : kMostAtOnce >= 4 ? 4 : kMostAtOnce >= 2 ? 2 : 1;
  // Sums of 16 bits take as many registers again, where they are not those of a whole part.
  static constexpr int kRowsAtOnce = kHasHalfDots || kAtOnce == kVectors || kAtOnce == 1 ? 4 : 2;
  static constexpr bool kAddsRowSums = !kLayout.has_minima && !kIsSigned;  // they take the zero point from the products
  static constexpr bool kIsUnpacked = kLayout.low_bits < 8 || kIsSigned;   // or the numbers are multiplied as they lie
};

// The largest number up to `most` that divides a count of rows.
constexpr int largest_divisor(int rows, int most) {
  while (rows % most != 0) --most;
  return most;
}

// So many groups are unpacked at a time, at most: with as many groups of a block of rows they fit the first cache.
constexpr int kQuadGroups = 18;

// Where the numbers of a group are. For several rows they are read once for all of them.
struct NumbersInMemory {
  const uint8_t* bytes;

  [[gnu::always_inline]] void read(int vector, HalfWords& low, HalfWords& high) const {
    low = load_half_words(bytes + 64 * vector);
    high = load_half_words(bytes + 64 * vector + 32);
    settle(low, high);
  }
};
struct NumbersInRegisters {
  const Words* numbers;

  [[gnu::always_inline]] void read(int vector, HalfWords& low, HalfWords& high) const {
    low = low_lanes(numbers[vector]);
    high = high_lanes(numbers[vector]);
  }
};

// The sums of the products of a part of a group with the N rows from `values` on, and of what is in `dots` where
// kHasHalfDots.
template <class Kind, int N, class Numbers>
[[gnu::always_inline]] inline void multiply_part(const Numbers& numbers, int part, const int8_t* values,
                                                 HalfWords (&dots)[N][2]) {
#ifdef EAGRE_HAS_HALF_DOTS
  EAGRE_UNROLL(8)
  for (int v = part * Kind::kVectors; v < (part + 1) * Kind::kVectors; ++v) {
    HalfWords low, high;
    numbers.read(v, low, high);
    EAGRE_UNROLL(4)
    for (int r = 0; r < N; ++r) {
      const HalfWords word = broadcast_half_word(values + r * kGroup + 4 * v);
      dots[r][0] = dot4_half(dots[r][0], low, word);
      dots[r][1] = dot4_half(dots[r][1], high, word);
    }
  }
#else
  constexpr int kAtOnce = Kind::kAtOnce;
  const int begin = part * Kind::kVectors, end = begin + Kind::kVectors;
  EAGRE_UNROLL(8)
  for (int first = begin; first < end; first += kAtOnce) {
    HalfWords pairs[N][2];
    EAGRE_UNROLL(8)
    for (int v = first; v < first + kAtOnce; ++v) {
      HalfWords low, high;
      numbers.read(v, low, high);
      EAGRE_UNROLL(4)
      for (int r = 0; r < N; ++r) {
        const HalfWords word = broadcast_half_word(values + r * kGroup + 4 * v);
        HalfWords some_low, some_high;
        if constexpr (Kind::kIsSigned) {
          some_low = pairs_of(magnitudes(low), with_signs(word, low));
          some_high = pairs_of(magnitudes(high), with_signs(word, high));
        } else {
          some_low = pairs_of(low, word);
          some_high = pairs_of(high, word);
        }
        pairs[r][0] = v == first ? some_low : add_pairs(pairs[r][0], some_low);
        pairs[r][1] = v == first ? some_high : add_pairs(pairs[r][1], some_high);
        if (v == first + kAtOnce - 1) {
          dots[r][0] = first == begin ? widened(pairs[r][0]) : add_widened(dots[r][0], pairs[r][0]);
          dots[r][1] = first == begin ? widened(pairs[r][1]) : add_widened(dots[r][1], pairs[r][1]);
          if (N > 1) settle(dots[r][0], dots[r][1]);
        } else if (N > 1) {
          settle(pairs[r][0], pairs[r][1]);
        }
      }
    }
  }
#endif
}

// Adds the products of a group with the N rows from `first` on to their totals.
template <class Kind, int N, class Numbers>
[[gnu::always_inline]] inline void add_to_rows(const Numbers& numbers, const float (*group_scales)[kTile],
                                               const float (*group_minima)[kTile], const RowGroups& rows, int first,
                                               float* totals) {
  constexpr Layout kLayout = Kind::kLayout;
  constexpr int kHalfTile = kTile / 2;
  EAGRE_UNROLL(2)
  for (int part = 0; part < kLayout.parts; ++part) {
    const int32_t* const row_sums = rows.sums + first * kLayout.parts + part;  // one for each row
    HalfWords dots[N][2];
    if constexpr (kHasHalfDots) {
      EAGRE_UNROLL(4)
      for (int r = 0; r < N; ++r) {
        dots[r][0] = dots[r][1] = broadcast_half_int(Kind::kAddsRowSums ? row_sums[r * kLayout.parts] : 0);
      }
    }
    multiply_part<Kind>(numbers, part, rows.values + first * kGroup, dots);
    EAGRE_UNROLL(2)
    for (int half = 0; half < 2; ++half) {
      const HalfFloats scales = load_half(group_scales[part] + kHalfTile * half);
      HalfFloats minima{};
      if constexpr (kLayout.has_minima) minima = load_half(group_minima[part] + kHalfTile * half);
      EAGRE_UNROLL(4)
      for (int r = 0; r < N; ++r) {
        const int32_t* const row_sum = row_sums + r * kLayout.parts;
        float* const total = totals + (first + r) * kTile + kHalfTile * half;
        HalfWords dot = dots[r][half];
        if constexpr (Kind::kAddsRowSums && !kHasHalfDots) dot = add_half_ints(dot, broadcast_half_int(*row_sum));
        HalfFloats sum = fma_half(to_half_floats(dot), mul_half(scales, rows.scales[first + r]), load_half(total));
        if constexpr (kLayout.has_minima) {
          float of_row;
          std::memcpy(&of_row, row_sum, sizeof of_row);
          sum = fma_half(minima, broadcast_half(of_row), sum);
        }
        store_half(total, sum);
      }
    }
  }
}

template <class Kind, int R>
[[gnu::always_inline]] inline void add_in_quads(const NumbersInMemory& numbers, const UnpackedGroup& group,
                                                const RowGroups& rows, float* totals) {
  constexpr int kRowsAtOnce = largest_divisor(R, Kind::kRowsAtOnce);
  EAGRE_NO_UNROLL
  for (int first = 0; first < R; first += kRowsAtOnce) {
    add_to_rows<Kind, kRowsAtOnce>(numbers, group.scales, group.minima, rows, first, totals);
  }
}

template <Format F>
[[gnu::always_inline]] inline void read_group(const BlockReader<F>& reader, int index,
                                              typename BlockReader<F>::Group& group) {
  reader.read(index, group);
  if constexpr (QuadKind<F>::kIsSigned) {
    for (Words& numbers : group.numbers) numbers = less_128(numbers);
  }
}

template <Format F>
[[gnu::always_inline]] inline void unpack_group(const BlockReader<F>& reader, int index, UnpackedGroup& to) {
  typename BlockReader<F>::Group group;
  read_group(reader, index, group);
  group.store_unpacked(to);
  settle_memory();
}

// Rows of one block: each group is unpacked for them alone. This and the next one are never inlined, because within a larger
// function GCC 12 has been seen to keep the sums in memory.
template <Format F, int R>
[[gnu::noinline]] void accumulate_in_quads(const std::byte* block, RowGroups rows, int num_groups, float* totals) {
  constexpr int kBlockGroups = layout_of(F).block_groups;
  UnpackedGroup unpacked;
  for (int g = 0; g < num_groups; g += kBlockGroups, block += block_bytes(F)) {
    const BlockReader<F> reader(block);
    for (int i = 0; i < kBlockGroups; ++i) {
      prefetch_far_behind<block_bytes(F), kBlockGroups>(block, i);
      if constexpr (R == 1) {
        typename BlockReader<F>::Group group;
        read_group(reader, i, group);
        group.store_factors(unpacked);
        add_to_rows<QuadKind<F>, 1>(NumbersInRegisters{group.numbers}, unpacked.scales, unpacked.minima, rows, 0, totals);
      } else if constexpr (QuadKind<F>::kIsUnpacked) {
        unpack_group(reader, i, unpacked);
        add_in_quads<QuadKind<F>, R>({unpacked.numbers}, unpacked, rows, totals);
      } else {
        typename BlockReader<F>::Group group;
        reader.read(i, group);
        group.store_factors(unpacked);
        const NumbersInMemory numbers{reinterpret_cast<const uint8_t*>(reader.numbers(i))};
        add_in_quads<QuadKind<F>, R>(numbers, unpacked, rows, totals);
      }
      rows.advance<R, layout_of(F).parts>();
    }
  }
}

// Groups that are unpacked for several blocks of rows. `ahead` is what is read next from the weights, `ahead_bytes` for each
// group: it is asked for between the groups.
template <class Kind, int R>
[[gnu::noinline]] void accumulate_unpacked_in_quads(const UnpackedGroup* groups, RowGroups rows, int num_groups,
                                                    float* totals, const std::byte* ahead, size_t ahead_bytes) {
  for (int g = 0; g < num_groups; ++g, ahead += ahead_bytes) {
    for (size_t line = 0; line < ahead_bytes; line += 64) prefetch_later(ahead + line);
    add_in_quads<Kind, R>({groups[g].numbers}, groups[g], rows, totals);
    rows.advance<R, Kind::kLayout.parts>();
  }
}

}  // namespace eagre

#endif  // EAGRE_HAS_HALVES
