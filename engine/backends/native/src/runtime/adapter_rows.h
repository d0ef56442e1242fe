// The columns of a step's rows that say which adapters it has.
#pragma once

#include <cstdint>

namespace eagre {

constexpr int64_t kAdapter = 9, kAdapterScale = 10;  // as base/token_layout.py has them

// Whether one of the rows, int32[num_rows][stride], has an adapter. Where none has, low-rank products write nothing, and
// products read nothing of them.
inline bool has_adapters(const int32_t* rows, int64_t num_rows, int64_t stride) {
  if (stride <= kAdapter) return false;
  for (int64_t row = 0; row < num_rows; ++row) {
    if (rows[row * stride + kAdapter] > 0) return true;
  }
  return false;
}

}  // namespace eagre
