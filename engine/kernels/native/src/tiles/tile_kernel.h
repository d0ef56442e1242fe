// The sums of one tile of weights with all rows of activations.
#pragma once

#include <cstddef>

#include "tiles/group.h"
#include "tiles/packed_rows.h"

namespace eagre {

// So many groups are unpacked at a time, so that they and the rows' groups stay in the first cache. Of K formats they are
// whole blocks.
constexpr int kChunkGroups = 24;

// Adds the sums of a packed tile and all rows to totals, [rows][kTile]. `unpacked` is room for kChunkGroups.
using TileKernel = void (*)(const PackedRows& x, const std::byte* tile, UnpackedGroup* unpacked, float* totals);

TileKernel float_kernel_of(Format format);
TileKernel integer_kernel_of(Format format);  // of integer formats whose blocks are one group
TileKernel k_kernel_of(Format format);

// By vector instructions.
inline TileKernel vector_kernel_of(Format format) {
  return is_k(format) ? k_kernel_of(format) : is_integer(format) ? integer_kernel_of(format) : float_kernel_of(format);
}

// The best of this library.
TileKernel tile_kernel_of(Format format);

}  // namespace eagre
