// Tiles of integers, by vector instructions.
//
// Each block of rows takes a group from the registers into which it was unpacked, however many blocks there are: to unpack
// it again costs less than to store it for all of them and to load it. Products of a few rows at a time read groups from
// memory anyway, so that blocks of rows share what is unpacked.
#include <algorithm>

#include "tiles/accumulate.h"
#include "tiles/row_quads.h"
#include "tiles/tile_kernel.h"

namespace eagre {
namespace {

#ifdef EAGRE_HAS_HALVES

// Goes through spans of groups, of about the same size and of whole blocks of weights, of at most `kMost` groups.
// body(first group, count, what is read next of the tile)
template <Format F, int kMost, class Body>
void for_each_span(const std::byte* tile, int num_groups, const Body& body) {
  constexpr int kBlockGroups = layout_of(F).block_groups, kSpanBlocks = kMost / kBlockGroups;
  const int weight_blocks = num_groups / kBlockGroups, spans = (weight_blocks + kSpanBlocks - 1) / kSpanBlocks;
  for (int span = 0; span < spans; ++span) {
    const int first = weight_blocks * span / spans * kBlockGroups;
    const int count = weight_blocks * (span + 1) / spans * kBlockGroups - first;
    body(first, count, tile + tile_bytes(F, first + count));
  }
}

template <Format F>
void multiply_tile_in_quads(const PackedRows& x, const std::byte* tile, UnpackedGroup* unpacked, float* totals) {
  constexpr Layout kLayout = layout_of(F);
  constexpr size_t kGroupBytes = block_bytes(F) / kLayout.block_groups;
  if (x.num_blocks() == 1) {
    return with_rows(x.rows_of(0), [&](auto constant) {
      constexpr int kRows = decltype(constant)::value;
      accumulate_in_quads<F, kRows>(tile, RowGroups(x, kLayout.sums, 0, 0), x.num_groups(), totals);
    });
  }
  static_assert(kQuadGroups <= kChunkGroups);
  for_each_span<F, kQuadGroups>(tile, x.num_groups(), [&](int first, int count, const std::byte* ahead) {
    for (int g = 0; g < count; ++g) {
      const BlockReader<F> reader(tile + tile_bytes(F, first + g));
      unpack_group(reader, g % kLayout.block_groups, unpacked[g]);
    }
    for (int block = 0; block < x.num_blocks(); ++block) {
      const RowGroups rows(x, kLayout.sums, block, first);
      float* to = totals + size_t{1} * block * kBlockRows * kTile;
      with_rows(x.rows_of(block), [&](auto constant) {
        constexpr int kRows = decltype(constant)::value;
        accumulate_unpacked_in_quads<QuadKind<F>, kRows>(unpacked, rows, count, to, ahead, block == 0 ? kGroupBytes : 0);
      });
    }
  });
}

#endif

template <Format F>
void multiply_tile_in_registers(const PackedRows& x, const std::byte* tile, float* totals) {
  const int num_groups = x.num_groups(), num_blocks = x.num_blocks();
  const int chunk = num_blocks > 1 ? kChunkGroups : num_groups;
  for (int first = 0; first < num_groups; first += chunk) {
    const int count = std::min(chunk, num_groups - first);
    for (int block = 0; block < num_blocks; ++block) {
      const RowGroups rows(x, layout_of(F).sums, block, first);
      with_rows(x.rows_of(block), [&](auto constant) {
        constexpr int kRows = decltype(constant)::value;
        float* to = totals + size_t{1} * block * kBlockRows * kTile;
        accumulate_packed<F, kRows>(tile + tile_bytes(F, first), rows, count, to);
      });
    }
  }
}

template <Format F>
void multiply_tile(const PackedRows& x, const std::byte* tile, [[maybe_unused]] UnpackedGroup* unpacked,
                   float* totals) {
#ifdef EAGRE_HAS_HALVES
  if constexpr (QuadKind<F>::kIsHere) {
    multiply_tile_in_quads<F>(x, tile, unpacked, totals);
  } else {
    multiply_tile_in_registers<F>(x, tile, totals);
  }
#else
  multiply_tile_in_registers<F>(x, tile, totals);
#endif
}

}  // namespace

TileKernel integer_kernel_of(Format format) {
  return kernel_of_integers<TileKernel>(format, [](auto constant) { return multiply_tile<decltype(constant)::value>; });
}

}  // namespace eagre
