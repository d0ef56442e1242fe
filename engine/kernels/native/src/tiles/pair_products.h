// Tiles of 4-bit integers with fewer multiplications, on processors that add beside them.
//
// S. Winograd (A New Algorithm for Inner Product, 1968): two products of an inner product follow from one product of sums,
//   x1 w1 + x2 w2 = (x1 + w2) (x2 + w1) - x1 x2 - w1 w2,
// whose other terms belong to the row alone and to the weights alone. Bytes hold these sums, because a row's are within 120
// of 0 and weights have 4 bits, so that everything stays an exact integer, and the results' bits are the same. AMD's
// processors add bytes in units that do not multiply; where the same units do both, as in Intel's, nothing is gained.
#pragma once

#include "isa/isa.h"

#ifdef EAGRE_HAS_PAIR_PRODUCTS

#include <cstddef>
#include <cstdint>

#include "layout/pairs.h"
#include "tiles/accumulate.h"
#include "tiles/group.h"

namespace eagre {

// A group of a tile, unpacked.
struct alignas(64) PairGroup {
  // Of the vectors that are multiplied in pairs, the low numbers less 8, and the high ones plus 120, so that a sum with a
  // byte of a row is a signed and an unsigned byte; the others as they are.
  uint8_t numbers[kGroup * kTile];
  float scales[kTile], minima[kTile];
  int32_t products[kTile];  // of the pairs of numbers, negated
};

// So many are unpacked at a time, at most: with as many groups of a block of rows they fit the first cache.
constexpr int kPairGroups = 18;

// Always inlined, as `unpack`.
template <Format F>
[[gnu::always_inline]] inline void unpack_pairs(const BlockReader<F>& reader, int index, PairGroup& to) {
  constexpr int kHalf = kVectorsOfBytes / 2;
  typename BlockReader<F>::Group group;
  reader.read(index, group);
  store(to.scales, group.scales[0]);
  if constexpr (layout_of(F).has_minima) store(to.minima, group.minima[0]);
  Ints products = broadcast_int(0);
  EAGRE_UNROLL(4)
  for (int v = 0; v < kHalf; ++v) {
    Words low = group.numbers[v], high = group.numbers[v + kHalf];
    if (v < kPairVectors) {
      low = add_bytes(low, broadcast_byte(-8));
      high = add_bytes(high, broadcast_byte(static_cast<int>(kMostByte)));
      products = dot4_words(products, high, low);
    }
    store_words(to.numbers + 64 * v, low);
    store_words(to.numbers + 64 * (v + kHalf), high);
  }
  store_ints(to.products, sub_ints(broadcast_int(0), products));
}

// Adds the products of a group to the sums of R rows.
template <bool kHasMinima, int R>
[[gnu::always_inline]] inline void add_pairs_of(const PairGroup& group, const RowGroups& rows, const int32_t* pair_sums,
                                                Floats (&total)[R]) {
  constexpr int kAtOnce = R < kSumsAtOnce ? R : kSumsAtOnce, kHalf = kVectorsOfBytes / 2;
  Words numbers[kVectorsOfBytes];
  EAGRE_UNROLL(8)
  for (int v = 0; v < kVectorsOfBytes; ++v) numbers[v] = load_words(group.numbers + 64 * v);
  const Floats scales = load(group.scales), minima = kHasMinima ? load(group.minima) : zeros();
  const Ints products = load_ints(group.products);
  EAGRE_UNROLL(16)
  for (int first = 0; first < R; first += kAtOnce) {
    const int8_t* const values = rows.values + first * kGroup;
    Ints dots[kAtOnce];
    EAGRE_UNROLL(2)
    for (int r = 0; r < kAtOnce; ++r) {
      dots[r] = add_ints(products, broadcast_int(pair_sums[first + r]));
      if constexpr (!kHasMinima) dots[r] = add_ints(dots[r], broadcast_int(rows.sums[first + r]));
    }
    static_assert(kPairVectors == kHalf - 1, "one vector of each half is left");
    EAGRE_UNROLL(2)
    for (int v = kPairVectors; v < kVectorsOfBytes; v += kHalf) {
      EAGRE_UNROLL(2)
      for (int r = 0; r < kAtOnce; ++r) dots[r] = dot4<true>(dots[r], numbers[v], values + r * kGroup + 4 * v);
    }
    EAGRE_UNROLL(4)
    for (int v = 0; v < kPairVectors; ++v) {
      EAGRE_UNROLL(2)
      for (int r = 0; r < kAtOnce; ++r) {
        const int8_t* const low = values + r * kGroup + 4 * v;
        const Words bytes = add_bytes(broadcast_word(low), numbers[v + kHalf]);
        const Words others = add_bytes(broadcast_word(low + kGroup / 2), numbers[v]);
        dots[r] = dot4_words(dots[r], bytes, others);
      }
    }
    EAGRE_UNROLL(2)
    for (int r = 0; r < kAtOnce; ++r) {
      total[first + r] = add_part<kHasMinima>(total[first + r], dots[r], scales, minima, rows.scales[first + r],
                                              rows.sums + first + r);
    }
  }
}

// Rows of one block: each group is unpacked for them alone.
template <Format F, int R>
void accumulate_pairs(const std::byte* block, RowGroups rows, const int32_t* pair_sums, int num_groups, float* totals) {
  constexpr int kBlockGroups = layout_of(F).block_groups;
  Floats total[R];
  EAGRE_UNROLL(16)
  for (int r = 0; r < R; ++r) total[r] = load(totals + r * kTile);
  PairGroup group;
  for (int g = 0; g < num_groups; g += kBlockGroups, block += block_bytes(F)) {
    const BlockReader<F> reader(block);
    for (int i = 0; i < kBlockGroups; ++i, pair_sums += R) {
      prefetch_behind<block_bytes(F), kBlockGroups>(block, i);
      unpack_pairs(reader, i, group);
      add_pairs_of<layout_of(F).has_minima>(group, rows, pair_sums, total);
      rows.advance<R, 1>();
    }
  }
  EAGRE_UNROLL(16)
  for (int r = 0; r < R; ++r) store(totals + r * kTile, total[r]);
}

// Groups that are unpacked for several blocks of rows. `ahead` is what is read next from the weights, `ahead_bytes` for each
// group: it is asked for between the groups.
template <bool kHasMinima, int R>
void accumulate_pairs(const PairGroup* groups, RowGroups rows, const int32_t* pair_sums, int num_groups, float* totals,
                      const std::byte* ahead, size_t ahead_bytes) {
  Floats total[R];
  EAGRE_UNROLL(16)
  for (int r = 0; r < R; ++r) total[r] = load(totals + r * kTile);
  for (int g = 0; g < num_groups; ++g, pair_sums += R, ahead += ahead_bytes) {
    for (size_t line = 0; line < ahead_bytes; line += 64) prefetch_later(ahead + line);
    add_pairs_of<kHasMinima>(groups[g], rows, pair_sums, total);
    rows.advance<R, 1>();
  }
  EAGRE_UNROLL(16)
  for (int r = 0; r < R; ++r) store(totals + r * kTile, total[r]);
}

}  // namespace eagre

#endif  // EAGRE_HAS_PAIR_PRODUCTS
