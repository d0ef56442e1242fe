// Rows of a packed matrix, as float32.
#pragma once

#include <cstdint>

#include "products/product.h"

namespace eagre {

// Output `index` of the matrix, a row of [outputs, inputs]: to[num_inputs].
void unpack_output(const Matrix& matrix, int64_t index, float* to);

}  // namespace eagre
