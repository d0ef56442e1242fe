// Tiles of bfloat16 on the matrix unit, for any number of rows.
//
// A group of a tile is what a tile register holds as the right matrix: 16 pairs of inputs for 16 outputs; and so is a group
// of a block of rows as the left one. The unit sums in another order than vector instructions do, and so a single row takes
// it too: then a row's result is the same alone and in a batch. What it adds up are groups in their order.
#pragma once

#include "isa/tile_registers.h"

#if EAGRE_HAS_TILE_REGISTERS

#include <algorithm>
#include <cstddef>
#include <utility>

#include "tiles/stream.h"
#include "tiles/tile_kernel.h"

namespace eagre {

constexpr size_t kBfloat16GroupBytes = group_bytes(Format::kBfloat16);  // of a tile, and of a block of 16 rows
constexpr int kUnitBlocks = 4;  // that take a group of weights in turn: so long does a product take

// Adds the products of some groups with as many neighbouring blocks of rows as there are indices.
template <size_t... kIndex>
void add_bfloat16_blocks(const PackedRows& x, const std::byte* weights, int first_block, int first_group, int num_groups,
                         float* totals, std::index_sequence<kIndex...>) {
  constexpr size_t kRowBytes = group_bytes(Activations::kBfloat16);
  constexpr int kWeights = 6, kRows = 4;  // registers; those of the sums are the first
  // A block of fewer than 16 rows is multiplied as if it had 16: what lies behind it is in the same memory, and results
  // that belong to no row are read by nobody.
  const size_t strides[] = {x.rows_of(first_block + static_cast<int>(kIndex)) * kRowBytes...};
  const std::byte* values[] = {x.values(Activations::kBfloat16, first_block + static_cast<int>(kIndex)) +
                               first_group * strides[kIndex]...};
  (tile_load<kIndex>(totals + kIndex * kBlockRows * kTile, 64), ...);
  for (int g = 0; g < num_groups; ++g, weights += kBfloat16GroupBytes) {
    prefetch_behind(weights, kBfloat16GroupBytes);
    tile_load<kWeights>(weights, 64);
    ((tile_load<kRows + kIndex % 2>(values[kIndex] + g * strides[kIndex], kRowBytes),
      tile_dot_bf16<kIndex, kRows + kIndex % 2, kWeights>()),
     ...);
  }
  (tile_store<kIndex>(totals + kIndex * kBlockRows * kTile, 64), ...);
}

// A tile kernel.
inline void multiply_bfloat16_on_matrix_unit(const PackedRows& x, const std::byte* tile, UnpackedGroup*, float* totals) {
  static constexpr TileShapes kShapes({{16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}});
  configure_tiles(kShapes);
  const int num_groups = x.num_groups(), num_blocks = x.num_blocks();
  const int chunk = num_blocks > kUnitBlocks ? kChunkGroups : num_groups;
  for (int first = 0; first < num_groups; first += chunk) {
    const int count = std::min(chunk, num_groups - first);
    const std::byte* weights = tile + first * kBfloat16GroupBytes;
    for (int block = 0; block < num_blocks; block += kUnitBlocks) {
      float* to = totals + size_t{1} * block * kBlockRows * kTile;
      const auto add = [&](auto indices) { add_bfloat16_blocks(x, weights, block, first, count, to, indices); };
      switch (num_blocks - block) {
        case 1: add(std::make_index_sequence<1>()); break;
        case 2: add(std::make_index_sequence<2>()); break;
        case 3: add(std::make_index_sequence<3>()); break;
        default: add(std::make_index_sequence<kUnitBlocks>());
      }
    }
  }
}

}  // namespace eagre

#endif  // EAGRE_HAS_TILE_REGISTERS
