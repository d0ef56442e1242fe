// Rows of a packed matrix, as float32.
#pragma once

#include <cstdint>

#include "layout/matrix.h"

namespace eagre {

// to[num_inputs] = scale * output `index` of the matrix, which is a row of [outputs, inputs].
void unpack_output(const Matrix& matrix, int64_t index, float scale, float* to);

}  // namespace eagre
