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
#include <type_traits>
#include <utility>

#include "tiles/stream.h"
#include "tiles/tile_kernel.h"

namespace eagre {

constexpr size_t kBfloat16GroupBytes = group_bytes(Format::kBfloat16);  // of a tile, and of a block of 16 rows
constexpr int kUnitSums = 4;  // registers of sums: of four blocks of rows with one tile, or of two with two
inline constexpr TileShapes kWholeTiles(
    {{16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}, {16, 64}});

// Some groups of one tile of weights, or of two neighbouring ones, with the totals of all rows, [rows][kTile], of each.
// What is in memory and not in a cache yet is asked for in time if it is `distant`.
template <int kTiles>
struct UnitTiles {
  const std::byte* weights[kTiles];
  float* totals[kTiles];
  bool is_distant;
};

// Adds the products of some groups with neighbouring blocks of rows. There are as many indices as registers of sums: sum i
// is of block i / kTiles and tile i % kTiles. A block's rows lie in a register of their own, so that two tiles take less
// from the second cache, where the rows of a large step are, than twice one.
template <int kTiles, size_t... kIndex>
void add_bfloat16_blocks(const PackedRows& x, const UnitTiles<kTiles>& tiles, int first_block, int first_group,
                         int num_groups, std::index_sequence<kIndex...>) {
  constexpr size_t kRowBytes = group_bytes(Activations::kBfloat16);
  constexpr int kWeights = 6, kRows = 4;  // registers; those of the sums are the first
  // A block of fewer than 16 rows is multiplied as if it had 16: what lies behind it is in the same memory, and results
  // that belong to no row are read by nobody.
  const size_t strides[] = {x.rows_of(first_block + static_cast<int>(kIndex / kTiles)) * kRowBytes...};
  const std::byte* values[] = {x.values(Activations::kBfloat16, first_block + static_cast<int>(kIndex / kTiles)) +
                               first_group * strides[kIndex]...};
  float* totals[] = {tiles.totals[kIndex % kTiles] + (first_block + kIndex / kTiles) * kBlockRows * kTile...};
  (tile_load<kIndex>(totals[kIndex], 64), ...);
  for (int g = 0; g < num_groups; ++g) {
    const size_t at = g * kBfloat16GroupBytes;
    if (tiles.is_distant && first_block == 0) {
      for (const std::byte* weights : tiles.weights) prefetch_behind<kBfloat16GroupBytes>(weights + at);
    }
    tile_load<kWeights>(tiles.weights[0] + at, 64);
    if constexpr (kTiles == 2) tile_load<kWeights + 1>(tiles.weights[1] + at, 64);
    const auto add = [&](auto index) {
      constexpr int kSum = index, kRowsOfBlock = kRows + kSum / kTiles % 2;
      if constexpr (kSum % kTiles == 0) tile_load<kRowsOfBlock>(values[kSum] + g * strides[kSum], kRowBytes);
      tile_dot_bf16<kSum, kRowsOfBlock, kWeights + kSum % kTiles>();
    };
    (add(std::integral_constant<int, kIndex>()), ...);
  }
  (tile_store<kIndex>(totals[kIndex], 64), ...);
}

// Adds the sums of some groups, from group `first` of the rows on, and all rows to the tiles' totals.
template <int kTiles>
void add_bfloat16_groups_on_matrix_unit(const PackedRows& x, const UnitTiles<kTiles>& tiles, int first, int num_groups) {
  constexpr int kBlocks = kUnitSums / kTiles;
  configure_tiles(kWholeTiles);
  for (int block = 0; block < x.num_blocks(); block += kBlocks) {
    const auto add = [&](auto indices) { add_bfloat16_blocks<kTiles>(x, tiles, block, first, num_groups, indices); };
    switch (std::min(kBlocks, x.num_blocks() - block)) {
      case 1: add(std::make_index_sequence<kTiles>()); break;
      case 2: add(std::make_index_sequence<2 * kTiles>()); break;
      case 3: add(std::make_index_sequence<std::min(kUnitSums, 3 * kTiles)>()); break;
      default: add(std::make_index_sequence<kUnitSums>());
    }
  }
}

// The tiles' memory holds bfloat16.
template <int kTiles>
void multiply_bfloat16_on_matrix_unit(const PackedRows& x, const UnitTiles<kTiles>& tiles) {
  const int num_groups = x.num_groups();
  const int chunk = x.num_blocks() > kUnitSums / kTiles ? kChunkGroups / kTiles : num_groups;
  for (int first = 0; first < num_groups; first += chunk) {
    UnitTiles<kTiles> part = tiles;
    for (const std::byte*& weights : part.weights) weights += first * kBfloat16GroupBytes;
    add_bfloat16_groups_on_matrix_unit(x, part, first, std::min(chunk, num_groups - first));
  }
}

}  // namespace eagre

#endif  // EAGRE_HAS_TILE_REGISTERS
