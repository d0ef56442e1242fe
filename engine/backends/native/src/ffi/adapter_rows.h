// The columns of a step's rows that say which adapters it has.
#pragma once

#include <cstdint>

#include "ffi/handler.h"

namespace eagre {

constexpr int64_t kAdapter = 9, kAdapterScale = 10;  // as base/token_layout.py has them

// Whether a row has an adapter. Where none has, low-rank products write nothing, and products read nothing of them.
inline bool has_adapters(const S32& rows) {
  const auto shape = rows.dimensions();
  if (shape.size() != 2 || shape[1] <= kAdapter) return false;
  for (int64_t row = 0; row < shape[0]; ++row) {
    if (rows.typed_data()[row * shape[1] + kAdapter] > 0) return true;
  }
  return false;
}

}  // namespace eagre
