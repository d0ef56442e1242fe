// Tiles of the K formats. Each block of rows takes a group from the registers into which it was unpacked, however many
// there are: to unpack it again costs less than to store it for all of them and to load it.
#include "tiles/accumulate.h"
#include "tiles/tile_kernel.h"

namespace eagre {
namespace {

template <Format F>
void multiply_tile(const PackedRows& x, const std::byte* tile, UnpackedGroup*, float* totals) {
  for (int block = 0; block < x.num_blocks(); ++block) {
    const RowGroups rows(x, layout_of(F).sums, block, 0);
    with_rows(x.rows_of(block), [&](auto constant) {
      constexpr int kRows = decltype(constant)::value;
      accumulate_packed<F, kRows>(tile, rows, x.num_groups(), totals + size_t{1} * block * kBlockRows * kTile);
    });
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
