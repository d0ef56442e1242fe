// Tiles of integers, by vector instructions. Each block of rows takes a group from the registers into which it was
// unpacked, however many blocks there are: to unpack it again costs less than to store it for all of them and to load it.
// Of products of pairs it is the other way round.
#include <algorithm>

#include "tiles/accumulate.h"
#include "tiles/half_tiles.h"
#include "tiles/pair_products.h"
#include "tiles/tile_kernel.h"

namespace eagre {
namespace {

template <Format F, int R>
void accumulate(const std::byte* blocks, const RowGroups& rows, int num_groups, float* totals) {
#ifdef EAGRE_HAS_HALVES
  if constexpr (HalfKind<F>::kIsHere && R >= kLeastRowsOfHalves) {
    accumulate_halves<F, R>(blocks, rows, num_groups, totals);
  } else {
    accumulate_packed<F, R>(blocks, rows, num_groups, totals);
  }
#else
  accumulate_packed<F, R>(blocks, rows, num_groups, totals);
#endif
}

#ifdef EAGRE_HAS_PAIR_PRODUCTS

// Several blocks of rows share the unpacked groups, because to unpack one takes as long as its products with three rows.
template <Format F>
void multiply_tile_in_pairs(const PackedRows& x, const std::byte* tile, PairGroup* unpacked, float* totals) {
  constexpr Layout kLayout = layout_of(F);
  constexpr size_t kGroupBytes = block_bytes(F) / kLayout.block_groups;
  const int num_groups = x.num_groups();
  if (x.num_blocks() == 1) {
    const RowGroups rows(x, kLayout.sums, 0, 0);
    static_assert(kLeastRowsOfPairs == 12);
    if (x.rows_of(0) <= 12) return accumulate_pairs<F, 12>(tile, rows, x.pair_sums(0), num_groups, totals);
    return accumulate_pairs<F, kBlockRows>(tile, rows, x.pair_sums(0), num_groups, totals);
  }
  // Spans of groups, of about the same size and of whole blocks of weights.
  constexpr int kSpanBlocks = kPairGroups / kLayout.block_groups;
  static_assert(kPairGroups * sizeof(PairGroup) <= kChunkGroups * sizeof(UnpackedGroup));
  const int weight_blocks = num_groups / kLayout.block_groups, spans = (weight_blocks + kSpanBlocks - 1) / kSpanBlocks;
  for (int span = 0; span < spans; ++span) {
    const int first = weight_blocks * span / spans * kLayout.block_groups;
    const int count = weight_blocks * (span + 1) / spans * kLayout.block_groups - first;
    const std::byte* const from = tile + tile_bytes(F, first);
    const std::byte* const ahead = from + tile_bytes(F, count);
    for (int g = 0; g < count; ++g) {
      const BlockReader<F> reader(from + g / kLayout.block_groups * block_bytes(F));
      unpack_pairs(reader, g % kLayout.block_groups, unpacked[g]);
    }
    for (int block = 0; block < x.num_blocks(); ++block) {
      const RowGroups rows(x, kLayout.sums, block, first);
      const int num_rows = x.rows_of(block);
      const int32_t* pair_sums = x.pair_sums(block) + size_t{1} * first * num_rows;
      float* to = totals + size_t{1} * block * kBlockRows * kTile;
      with_rows(num_rows, [&](auto constant) {
        constexpr int kRows = decltype(constant)::value;
        accumulate_pairs<kLayout.has_minima, kRows>(unpacked, rows, pair_sums, count, to, ahead,
                                                    block == 0 ? kGroupBytes : 0);
      });
    }
  }
}

#endif

template <Format F>
void multiply_tile(const PackedRows& x, const std::byte* tile, [[maybe_unused]] UnpackedGroup* unpacked,
                   float* totals) {
#ifdef EAGRE_HAS_PAIR_PRODUCTS
  if constexpr (has_pair_kernel(F)) {
    if (x.has_pair_sums()) return multiply_tile_in_pairs<F>(x, tile, reinterpret_cast<PairGroup*>(unpacked), totals);
  }
#endif
  const int num_groups = x.num_groups(), num_blocks = x.num_blocks();
  const int chunk = num_blocks > 1 ? kChunkGroups : num_groups;
  for (int first = 0; first < num_groups; first += chunk) {
    const int count = std::min(chunk, num_groups - first);
    for (int block = 0; block < num_blocks; ++block) {
      const RowGroups rows(x, layout_of(F).sums, block, first);
      with_rows(x.rows_of(block), [&](auto constant) {
        constexpr int kRows = decltype(constant)::value;
        float* to = totals + size_t{1} * block * kBlockRows * kTile;
        accumulate<F, kRows>(tile + tile_bytes(F, first), rows, count, to);
      });
    }
  }
}

}  // namespace

TileKernel integer_kernel_of(Format format) {
  return kernel_of_integers<TileKernel>(format, [](auto constant) { return multiply_tile<decltype(constant)::value>; });
}

}  // namespace eagre
