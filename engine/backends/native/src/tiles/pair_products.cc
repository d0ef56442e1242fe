// Tiles of 4-bit integers with fewer multiplications, on processors that add beside them.
//
// S. Winograd (A New Algorithm for Inner Product, 1968): two products of an inner product follow from one product of sums,
//   x1 w1 + x2 w2 = (x1 + w2) (x2 + w1) - x1 x2 - w1 w2,
// whose other terms belong to the row alone and to the weights alone. Bytes hold these sums, because a row's are within 120
// of 0 and weights have 4 bits, so that everything stays an exact integer, and the results' bits are the same. AMD's
// processors add bytes in units that do not multiply; where the same units do both, as in Intel's, nothing is gained.
//
// Two tiles at a time share what is loaded of the rows, because a processor that multiplies 64 bytes twice a cycle (Zen 5)
// loads no more than twice a cycle. A group of both is unpacked into registers for some blocks of rows. The sums of two
// tiles with 16 rows are more than there are registers, and stay in the first cache.
#include "isa/isa.h"
#include "tiles/tile_kernel.h"

#ifdef EAGRE_HAS_PAIR_PRODUCTS

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "layout/pairs.h"
#include "tiles/accumulate.h"
#include "tiles/group.h"

namespace eagre {
namespace {

constexpr int kHalf = kVectorsOfBytes / 2;
static_assert(kPairVectors == kHalf - 1, "one vector of each half of a group is left");

// What comes next of each tile is asked for so many groups ahead: whole blocks of K formats.
constexpr int kGroupsAhead = 8;

// So many blocks of rows meet a group while it is in registers, at most: their sums fit the first cache.
constexpr int kBlocksAtOnce = 8;

// What a group takes of the rows.
struct PairRows {
  RowGroups groups;
  const int32_t* pair_sums;  // [group][row]
};

// A group of each of some tiles, unpacked.
template <int kTiles>
struct PairGroups {
  // Of the vectors that are multiplied in pairs, the low numbers less 8, and the high ones plus 120, so that a sum with a
  // byte of a row is a signed and an unsigned byte; the others as they are.
  Words numbers[kTiles][kVectorsOfBytes];
  Floats scales[kTiles], minima[kTiles];
  Ints products[kTiles];  // of the pairs of numbers
};

template <Format F, int kTiles>
[[gnu::always_inline]] inline void read_pairs(const BlockReader<F>& reader, int index, int tile, PairGroups<kTiles>& to) {
  typename BlockReader<F>::Group group;
  reader.read(index, group);
  to.scales[tile] = group.scales[0];
  to.minima[tile] = layout_of(F).has_minima ? group.minima[0] : zeros();
  Ints products = broadcast_int(0);
  EAGRE_UNROLL(4)
  for (int v = 0; v < kHalf; ++v) {
    Words low = group.numbers[v], high = group.numbers[v + kHalf];
    if (v < kPairVectors) {
      low = add_bytes(low, broadcast_byte(-8));
      high = add_bytes(high, broadcast_byte(static_cast<int>(kMostByte)));
      products = dot4_words(products, high, low);
    }
    to.numbers[tile][v] = low;
    to.numbers[tile][v + kHalf] = high;
  }
  to.products[tile] = products;
}

// Adds the products of a group of each tile with R rows, from row `first` on, to the sums of these rows.
template <bool kHasMinima, int R, int kTiles>
[[gnu::always_inline]] inline void add_to_rows(const PairGroups<kTiles>& groups, const PairRows& rows, size_t first,
                                               float* const (&totals)[kTiles]) {
  const int8_t* const values = rows.groups.values + first * kGroup;
  Ints dots[R][kTiles];
  EAGRE_UNROLL(2)
  for (int r = 0; r < R; ++r) {
    Ints of_row = broadcast_int(rows.pair_sums[first + r]);
    if constexpr (!kHasMinima) of_row = add_ints(of_row, broadcast_int(rows.groups.sums[first + r]));
    EAGRE_UNROLL(2)
    for (int t = 0; t < kTiles; ++t) dots[r][t] = sub_ints(of_row, groups.products[t]);
  }
  EAGRE_UNROLL(2)
  for (int v = kPairVectors; v < kVectorsOfBytes; v += kHalf) {
    EAGRE_UNROLL(2)
    for (int r = 0; r < R; ++r) {
      const Words word = broadcast_word(values + r * kGroup + 4 * v);
      EAGRE_UNROLL(2)
      for (int t = 0; t < kTiles; ++t) dots[r][t] = dot4_words(dots[r][t], groups.numbers[t][v], word);
    }
  }
  EAGRE_UNROLL(4)
  for (int v = 0; v < kPairVectors; ++v) {
    EAGRE_UNROLL(2)
    for (int r = 0; r < R; ++r) {
      const int8_t* const at = values + r * kGroup + 4 * v;
      const Words low = broadcast_word(at), high = broadcast_word(at + kGroup / 2);
      EAGRE_UNROLL(2)
      for (int t = 0; t < kTiles; ++t) {
        const Words bytes = add_bytes(low, groups.numbers[t][v + kHalf]), others = add_bytes(high, groups.numbers[t][v]);
        dots[r][t] = dot4_words(dots[r][t], bytes, others);
      }
    }
  }
  EAGRE_UNROLL(2)
  for (int r = 0; r < R; ++r) {
    const Floats row_scale = broadcast(rows.groups.scales[first + r]);
    Floats row_sum = zeros();
    if constexpr (kHasMinima) row_sum = as_floats(broadcast_word(rows.groups.sums + first + r));
    EAGRE_UNROLL(2)
    for (int t = 0; t < kTiles; ++t) {
      float* const total = totals[t] + r * kTile;
      store(total, add_part<kHasMinima>(load(total), dots[r][t], groups.scales[t], groups.minima[t], row_scale, row_sum));
    }
  }
}

// Adds the products of neighbouring tiles with `num_blocks` blocks of `num_rows` rows, R at a time. What comes next of the
// weights is asked for if `asks`: of these tiles, and then of as many that lie `to_next` bytes behind them.
template <Format F, int R, int kTiles>
void accumulate(const std::byte* const (&tiles)[kTiles], PairRows rows, int num_groups, int num_blocks, int num_rows,
                float* const (&totals)[kTiles], bool asks, int64_t to_next) {
  constexpr int kBlockGroups = layout_of(F).block_groups;
  static_assert(kGroupsAhead % kBlockGroups == 0);
  const size_t to_next_block = size_t{1} * kBlockRows * num_groups;
  const int64_t num_ahead = std::min(kGroupsAhead, num_groups);
  for (int g = 0; g < num_groups; ++g) {
    const int64_t ahead = g + num_ahead < num_groups ? tile_bytes(F, g + num_ahead)
                                                     : to_next + tile_bytes(F, g + num_ahead - num_groups);
    PairGroups<kTiles> groups;
    EAGRE_UNROLL(2)
    for (int t = 0; t < kTiles; ++t) {
      if (asks) ask_for_part<block_bytes(F), kBlockGroups>(tiles[t] + ahead, g % kBlockGroups);
      read_pairs(BlockReader<F>(tiles[t] + tile_bytes(F, g)), g % kBlockGroups, t, groups);
    }
    float* to[kTiles];
    std::copy_n(totals, kTiles, to);
    size_t row = size_t{1} * g * num_rows;
    for (int block = 0; block < num_blocks; ++block, row += to_next_block) {
      EAGRE_NO_UNROLL
      for (int r = 0; r < num_rows; r += R) {
        float* of_rows[kTiles];
        for (int t = 0; t < kTiles; ++t) of_rows[t] = to[t] + r * kTile;
        add_to_rows<layout_of(F).has_minima, R, kTiles>(groups, rows, row + r, of_rows);
      }
      for (int t = 0; t < kTiles; ++t) to[t] += kBlockRows * kTile;
    }
  }
}

template <Format F, int kTiles>
void multiply_some(const PackedRows& x, const std::byte* const (&tiles)[kTiles], float* const (&totals)[kTiles],
                   int64_t to_next) {
  for (int block = 0, count; block < x.num_blocks(); block += count) {
    const int num_rows = x.rows_of(block);
    count = 1;
    while (count < kBlocksAtOnce && block + count < x.num_blocks() && x.rows_of(block + count) == num_rows) ++count;
    const PairRows rows{RowGroups(x, layout_of(F).sums, block, 0), x.pair_sums(block)};
    float* to[kTiles];
    for (int t = 0; t < kTiles; ++t) to[t] = totals[t] + size_t{1} * block * kBlockRows * kTile;
    if (num_rows % 2 == 0) {  // all padded counts but 1 are even
      accumulate<F, 2, kTiles>(tiles, rows, x.num_groups(), count, num_rows, to, block == 0, to_next);
    } else {
      accumulate<F, 1, kTiles>(tiles, rows, x.num_groups(), count, num_rows, to, block == 0, to_next);
    }
  }
}

template <Format F>
void multiply_tiles(const PackedRows& x, const MatrixPart& part, int64_t tile, int count, float* totals, size_t between) {
  for (; count >= 2; count -= 2, tile += 2, totals += 2 * between) {
    multiply_some<F, 2>(x, {part.tile(tile), part.tile(tile + 1)}, {totals, totals + between}, 2 * part.stride);
  }
  if (count == 1) multiply_some<F, 1>(x, {part.tile(tile)}, {totals}, part.stride);
}

}  // namespace

PairKernel pair_kernel_of(Format format) {
  return kernel_of_integers<PairKernel>(format, [](auto constant) -> PairKernel {
    constexpr Format kFormat = decltype(constant)::value;
    if constexpr (has_pair_kernel(kFormat)) return multiply_tiles<kFormat>;
    return nullptr;
  });
}

}  // namespace eagre

#else

namespace eagre {

PairKernel pair_kernel_of(Format) { return nullptr; }

}  // namespace eagre

#endif  // EAGRE_HAS_PAIR_PRODUCTS
