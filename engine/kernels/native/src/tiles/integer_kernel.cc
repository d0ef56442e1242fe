// Tiles of integers, by vector instructions. Each block of rows takes a group from the registers into which it was
// unpacked, however many blocks there are: to unpack it again costs less than to store it for all of them and to load it.
#include <algorithm>

#include "tiles/accumulate.h"
#include "tiles/half_tiles.h"
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

template <Format F>
void multiply_tile(const PackedRows& x, const std::byte* tile, UnpackedGroup*, float* totals) {
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
  switch (format) {
    case Format::kInt8: return multiply_tile<Format::kInt8>;
    case Format::kInt8Min: return multiply_tile<Format::kInt8Min>;
    case Format::kInt4: return multiply_tile<Format::kInt4>;
    case Format::kInt4Zero: return multiply_tile<Format::kInt4Zero>;
    case Format::kInt8Zero: return multiply_tile<Format::kInt8Zero>;
    case Format::kQ2K: return multiply_tile<Format::kQ2K>;
    case Format::kQ3K: return multiply_tile<Format::kQ3K>;
    case Format::kQ4K: return multiply_tile<Format::kQ4K>;
    case Format::kQ5K: return multiply_tile<Format::kQ5K>;
    case Format::kQ6K: return multiply_tile<Format::kQ6K>;
    case Format::kIq4Xs: return multiply_tile<Format::kIq4Xs>;
    default: return multiply_tile<Format::kInt4Min>;
  }
}

}  // namespace eagre
