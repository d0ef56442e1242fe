// The sums of tiles of weights with all rows of activations.
#pragma once

#include <cstddef>

#include "layout/matrix.h"
#include "layout/packed_rows.h"
#include "tiles/group.h"

namespace eagre {

// So many groups are gone through by all rows at a time, so that they and the rows' groups stay in the first cache. Of K
// formats they are whole blocks.
constexpr int kChunkGroups = 24;

// Adds the sums of a packed tile and all rows to totals, [rows][kTile]. `unpacked` is room for kChunkGroups, which the
// matrix unit, products of a few rows at a time, and of integers as bfloat16 use.
using TileKernel = void (*)(const PackedRows& x, const std::byte* tile, UnpackedGroup* unpacked, float* totals);

TileKernel float_kernel_of(Format format);
TileKernel integer_kernel_of(Format format);

// Adds the sums of `count` neighbouring tiles of a part, from `tile` on, and all rows to the totals of each tile, which lie
// `between` floats from each other, by products of pairs (tiles/pair_products.cc); `x` has pair sums.
using PairKernel = void (*)(const PackedRows& x, const MatrixPart& part, int64_t tile, int count, float* totals,
                            size_t between);

PairKernel pair_kernel_of(Format format);  // null where there is none

// Adds the sums of two neighbouring tiles of a part, from `tile` on, and all rows to the totals of each tile, which lie
// `between` floats from each other (tiles/byte_tiles.cc).
using TwoTilesKernel = void (*)(const PackedRows& x, const MatrixPart& part, int64_t tile, float* totals, size_t between);

constexpr int kLeastRowsOfTwoTiles = 12;  // of fewer, memory is the bound

TwoTilesKernel two_tiles_kernel_of(Format format);  // null where there is none

// Whether this library multiplies many rows faster with Format::kInt8 than with Format::kBfloat16.
bool multiplies_bytes_faster();

// Adds the products of a tile with the offsets of the rows' groups.
using OffsetKernel = void (*)(const PackedRows& x, const std::byte* tile, float* totals);

OffsetKernel offset_kernel_of(Format format);  // null where rows are not rounded to bytes

// By vector instructions.
inline TileKernel vector_kernel_of(Format format) {
  return is_integer(format) ? integer_kernel_of(format) : float_kernel_of(format);
}

// So many groups of integers are turned into bfloat16 at a time, of one tile or half as many of each of two: whole blocks
// of K formats, which stay in the first cache.
constexpr int kBfloat16Groups = 16;

// Writes what a tile of Format::kBfloat16 would hold in the place of some groups of integers: scale * number + minimum in
// float32, rounded to nearest even.
using Bfloat16Unpacker = void (*)(const std::byte* block, int num_groups, std::byte* to);

Bfloat16Unpacker bfloat16_unpacker_of(Format format);  // of a format of integers

// Adds the sums of some groups of bfloat16, from group `first` of the rows on, and all rows to totals; by vector
// instructions.
void add_bfloat16_groups(const PackedRows& x, const std::byte* weights, int first, int num_groups, float* totals);

// Adds the sums of `count` neighbouring tiles of a part, from `tile` on, and all rows to the totals of each tile, which lie
// `between` floats from each other; by the best way of this library. `unpacked` is room for kChunkGroups.
void accumulate_tiles(const PackedRows& x, const MatrixPart& part, int64_t tile, int count, UnpackedGroup* unpacked,
                      float* totals, size_t between);

}  // namespace eagre
