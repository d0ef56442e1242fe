// Tiles of integers in blocks of one group.
#include <algorithm>

#include "tiles/accumulate.h"
#include "tiles/tile_kernel.h"

namespace eagre {
namespace {

// So few blocks of rows take a group from the registers into which it was unpacked, each unpacking it again: that costs
// less than to store it and to load it, and memory is asked for while products are computed.
constexpr int kBlocksInRegisters = 4;

template <Format F>
void multiply_tile(const PackedRows& x, const std::byte* tile, UnpackedGroup* unpacked, float* totals) {
  constexpr Layout kLayout = layout_of(F);
  const int num_groups = x.num_groups(), num_blocks = x.num_blocks();
  const bool is_long = num_blocks > kBlocksInRegisters, unpacks = kLayout.low_bits < 8 && is_long;
  const int chunk = is_long ? kChunkGroups : num_groups;
  for (int first = 0; first < num_groups; first += chunk) {
    const int count = std::min(chunk, num_groups - first);
    const std::byte* from = tile + first * block_bytes(F);
    if (unpacks) unpack<F>(from, count, unpacked);
    for (int block = 0; block < num_blocks; ++block) {
      const RowGroups rows(x, kLayout.sums, block, first);
      with_rows(x.rows_of(block), [&](auto constant) {
        constexpr int kRows = decltype(constant)::value;
        float* to = totals + size_t{1} * block * kBlockRows * kTile;
        if constexpr (kLayout.low_bits < 8) {
          if (unpacks) return accumulate_unpacked<1, kLayout.has_minima, true, kRows>(unpacked, rows, count, to);
        }
        accumulate_packed<F, kRows>(from, rows, count, to);
      });
    }
  }
}

}  // namespace

TileKernel integer_kernel_of(Format format) {
  switch (format) {
    case Format::kInt8: return multiply_tile<Format::kInt8>;
    case Format::kInt8Min: return multiply_tile<Format::kInt8Min>;
    case Format::kInt4: return multiply_tile<Format::kInt4>;
    case Format::kInt4Zero: return multiply_tile<Format::kInt4Zero>;
    case Format::kInt8Zero: return multiply_tile<Format::kInt8Zero>;
    default: return multiply_tile<Format::kInt4Min>;
  }
}

}  // namespace eagre
