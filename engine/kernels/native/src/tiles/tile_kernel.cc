#include "tiles/tile_kernel.h"

#include "tiles/matrix_unit.h"
#include "tiles/matrix_unit_floats.h"

namespace eagre {

TileKernel tile_kernel_of(Format format) {
#if EAGRE_HAS_TILE_REGISTERS
  switch (format) {
    case Format::kBfloat16: return multiply_bfloat16_on_matrix_unit;
    case Format::kInt8: return multiply_on_matrix_unit<Format::kInt8>;
    case Format::kInt8Min: return multiply_on_matrix_unit<Format::kInt8Min>;
    case Format::kInt4: return multiply_on_matrix_unit<Format::kInt4>;
    case Format::kInt4Min: return multiply_on_matrix_unit<Format::kInt4Min>;
    case Format::kInt8Zero: return multiply_on_matrix_unit<Format::kInt8Zero>;
    case Format::kInt4Zero: return multiply_on_matrix_unit<Format::kInt4Zero>;
    case Format::kQ4K: return multiply_on_matrix_unit<Format::kQ4K>;
    case Format::kQ5K: return multiply_on_matrix_unit<Format::kQ5K>;
    case Format::kIq4Xs: return multiply_on_matrix_unit<Format::kIq4Xs>;
    default: break;
  }
#endif
  return vector_kernel_of(format);
}

}  // namespace eagre
