// Tiles of 8-bit integers, two at a time.
//
// Two tiles share what is loaded of the rows, because a processor that multiplies 64 bytes twice a cycle (Zen 5) loads no
// more than twice a cycle. A group of both is in registers while some blocks of rows meet it, whose sums stay in the first
// cache; they are the same, in the same order, as those of one tile at a time, so that the results' bits are the same.
#include "isa/isa.h"
#include "tiles/tile_kernel.h"

#ifdef EAGRE_HAS_PAIR_PRODUCTS

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tiles/accumulate.h"
#include "tiles/group.h"

namespace eagre {
namespace {

constexpr int kTiles = 2;
constexpr int kRowsAtOnce = 4;    // whose sums, of both tiles, are in registers beside the weights
constexpr int kBlocksAtOnce = 8;  // of rows that meet a group while it is in registers: their sums fit the first cache
constexpr int kGroupsAhead = 8;   // what comes next of each tile is asked for so many groups ahead

template <Format F>
using Groups = typename BlockReader<F>::Group[kTiles];

// Adds the products of a group of both tiles with R rows, of which `values` are the first one's, to the sums of these rows.
template <Format F, int R>
[[gnu::always_inline]] inline void add_to_rows(const Groups<F>& groups, const RowGroups& rows, size_t first,
                                               float* const (&totals)[kTiles]) {
  constexpr bool kHasMinima = layout_of(F).has_minima;
  const int8_t* const values = rows.values + first * kGroup;
  Ints dots[R][kTiles];
  EAGRE_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    const Ints of_row = broadcast_int(kHasMinima ? 0 : rows.sums[first + r]);
    EAGRE_UNROLL(2)
    for (int t = 0; t < kTiles; ++t) dots[r][t] = of_row;
  }
  EAGRE_UNROLL(8)
  for (int v = 0; v < kVectorsOfBytes; ++v) {
    EAGRE_UNROLL(4)
    for (int r = 0; r < R; ++r) {
      const Words word = broadcast_word(values + r * kGroup + 4 * v);
      EAGRE_UNROLL(2)
      for (int t = 0; t < kTiles; ++t) dots[r][t] = dot4_words(dots[r][t], groups[t].numbers[v], word);
    }
  }
  EAGRE_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    const Floats row_scale = broadcast(rows.scales[first + r]);
    Floats row_sum = zeros();
    if constexpr (kHasMinima) row_sum = as_floats(broadcast_word(rows.sums + first + r));
    EAGRE_UNROLL(2)
    for (int t = 0; t < kTiles; ++t) {
      float* const total = totals[t] + r * kTile;
      store(total, add_part<kHasMinima>(load(total), dots[r][t], groups[t].scales[0], groups[t].minima[0], row_scale,
                                        row_sum));
    }
  }
}

// Adds the products of the tiles with `num_blocks` blocks of `num_rows` rows. What comes next of the weights is asked for if
// `asks`: of these tiles, and then of as many that lie `to_next` bytes behind them.
template <Format F>
void multiply_blocks(const std::byte* const (&tiles)[kTiles], const RowGroups& rows, int num_groups, int num_blocks,
                     int num_rows, float* const (&totals)[kTiles], bool asks, int64_t to_next) {
  const size_t to_next_block = size_t{1} * kBlockRows * num_groups;
  const int64_t num_ahead = std::min(kGroupsAhead, num_groups);
  for (int g = 0; g < num_groups; ++g) {
    const int64_t ahead = g + num_ahead < num_groups ? tile_bytes(F, g + num_ahead)
                                                     : to_next + tile_bytes(F, g + num_ahead - num_groups);
    Groups<F> groups;
    EAGRE_UNROLL(2)
    for (int t = 0; t < kTiles; ++t) {
      if (asks) ask_for_part<block_bytes(F), 1>(tiles[t] + ahead, 0);
      BlockReader<F>(tiles[t] + tile_bytes(F, g)).read(0, groups[t]);
    }
    size_t row = size_t{1} * g * num_rows;
    for (int block = 0; block < num_blocks; ++block, row += to_next_block) {
      float* to[kTiles];
      for (int t = 0; t < kTiles; ++t) to[t] = totals[t] + size_t{1} * block * kBlockRows * kTile;
      int r = 0;
      const auto add_some = [&](auto constant) {
        constexpr int kRows = decltype(constant)::value;
        add_to_rows<F, kRows>(groups, rows, row + r, to);
        for (int t = 0; t < kTiles; ++t) to[t] += kRows * kTile;
        r += kRows;
      };
      EAGRE_NO_UNROLL
      while (r + kRowsAtOnce <= num_rows) add_some(std::integral_constant<int, kRowsAtOnce>());
      if (r + 2 <= num_rows) add_some(std::integral_constant<int, 2>());
      if (r < num_rows) add_some(std::integral_constant<int, 1>());
    }
  }
}

template <Format F>
void multiply_two(const PackedRows& x, const MatrixPart& part, int64_t tile, float* totals, size_t between) {
  const std::byte* const tiles[kTiles] = {part.tile(tile), part.tile(tile + 1)};
  for (int block = 0, count; block < x.num_blocks(); block += count) {
    const int num_rows = x.rows_of(block);
    count = 1;
    while (count < kBlocksAtOnce && block + count < x.num_blocks() && x.rows_of(block + count) == num_rows) ++count;
    float* const first = totals + size_t{1} * block * kBlockRows * kTile;
    multiply_blocks<F>(tiles, RowGroups(x, layout_of(F).sums, block, 0), x.num_groups(), count, num_rows,
                       {first, first + between}, block == 0, 2 * part.stride);
  }
}

}  // namespace

TwoTilesKernel two_tiles_kernel_of(Format format) {
  switch (format) {
    case Format::kInt8: return multiply_two<Format::kInt8>;
    case Format::kInt8Min: return multiply_two<Format::kInt8Min>;
    case Format::kInt8Zero: return multiply_two<Format::kInt8Zero>;
    default: return nullptr;
  }
}

}  // namespace eagre

#else

namespace eagre {

TwoTilesKernel two_tiles_kernel_of(Format) { return nullptr; }

}  // namespace eagre

#endif  // EAGRE_HAS_PAIR_PRODUCTS
