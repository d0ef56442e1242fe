// A packed weight matrix in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "layout/format.h"

namespace eagre {

// Neighbouring tiles in one format.
struct MatrixPart {
  Format format;
  const std::byte* tiles;
  int64_t stride;  // bytes from tile to tile
  int64_t num_tiles;
  Activations activations;  // that it is multiplied with: the format's, or bfloat16, to which integers are unpacked then

  const std::byte* tile(int64_t index) const { return tiles + index * stride; }
};

// Parts joined along the outputs.
struct Matrix {
  static constexpr int kMostParts = 8;

  MatrixPart parts[kMostParts];
  int num_parts;
  int64_t num_tiles;  // of all parts
  int num_groups;

  // The part that holds a tile, whose number becomes that within the part.
  const MatrixPart& part_of(int64_t& tile) const {
    int i = 0;
    while (tile >= parts[i].num_tiles) tile -= parts[i++].num_tiles;
    return parts[i];
  }
};

}  // namespace eagre
