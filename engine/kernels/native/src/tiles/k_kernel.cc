// Tiles of the K formats. Unpacking takes more than multiplying by one row, so that it is done once for all rows.
#include <algorithm>

#include "tiles/accumulate.h"
#include "tiles/tile_kernel.h"

namespace eagre {
namespace {

constexpr int kRowsInRegisters = 4;  // so few take a group from the registers into which it was unpacked

// Rows of any number, of groups that have been unpacked: one for all formats of a shape.
template <int kParts, bool kHasMinima, bool kSmall>
void multiply_unpacked(const UnpackedGroup* unpacked, int padded, const RowGroups& rows, int num_groups, float* totals) {
  with_rows(padded, [&](auto constant) {
    constexpr int kRows = decltype(constant)::value;
    accumulate_unpacked<kParts, kHasMinima, kSmall, kRows>(unpacked, rows, num_groups, totals);
  });
}

template <Format F>
void multiply_tile(const PackedRows& x, const std::byte* tile, UnpackedGroup* unpacked, float* totals) {
  constexpr Layout kLayout = layout_of(F);
  constexpr Shape kShape = shape_of(F);
  const int num_groups = x.num_groups(), num_blocks = x.num_blocks(), padded = x.rows_of(0);
  if (num_blocks == 1 && padded <= kRowsInRegisters) {
    const RowGroups rows(x, kLayout.sums, 0, 0);
    switch (padded) {
      case 1: return accumulate_packed<F, 1>(tile, rows, num_groups, totals);
      case 2: return accumulate_packed<F, 2>(tile, rows, num_groups, totals);
      default: return accumulate_packed<F, kRowsInRegisters>(tile, rows, num_groups, totals);
    }
  }
  for (int first = 0; first < num_groups; first += kChunkGroups) {
    const int count = std::min(kChunkGroups, num_groups - first);
    unpack<F>(tile + first / kLayout.block_groups * block_bytes(F), count, unpacked);
    for (int block = 0; block < num_blocks; ++block) {
      multiply_unpacked<kShape.parts, kShape.has_minima, kShape.is_small>(
          unpacked, x.rows_of(block), RowGroups(x, kLayout.sums, block, first), count,
          totals + size_t{1} * block * kBlockRows * kTile);
    }
  }
}

}  // namespace

TileKernel k_kernel_of(Format format) {
  switch (format) {
    case Format::kQ2K: return multiply_tile<Format::kQ2K>;
    case Format::kQ3K: return multiply_tile<Format::kQ3K>;
    case Format::kQ4K: return multiply_tile<Format::kQ4K>;
    case Format::kQ5K: return multiply_tile<Format::kQ5K>;
    case Format::kQ6K: return multiply_tile<Format::kQ6K>;
    default: return multiply_tile<Format::kIq4Xs>;
  }
}

}  // namespace eagre
