// A packed weight matrix in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "products/format.h"

namespace eagre {

struct Matrix {
  Format format;
  const std::byte* blocks;  // [tiles][groups][block_bytes(format)]
  int64_t num_tiles;
  int num_groups;
};

}  // namespace eagre
