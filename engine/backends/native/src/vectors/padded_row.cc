#include "vectors/padded_row.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace eagre {

bool copy_row(const float* logits, int64_t count, float* row) {
  Floats trace = zeros();
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const Floats x = load(logits + i);
    store(row + i, x);
    trace = fma(x, zeros(), trace);
  }
  bool is_odd = std::isnan(sum(trace));  // so is the trace of an infinity
  for (; i < count; ++i) {
    row[i] = logits[i];
    is_odd |= std::isnan(row[i]);
  }
  std::fill(row + count, row + padded(count), -std::numeric_limits<float>::infinity());
  return is_odd && std::any_of(row, row + count, [](float x) { return std::isnan(x); });
}

float Peaks::best() const { return *std::max_element(parts, parts + kParts); }

float Peaks::at_most(int rank) const {
  float sorted[kParts];
  std::copy_n(parts, kParts, sorted);
  std::nth_element(sorted, sorted + rank - 1, sorted + kParts, std::greater<>());
  return sorted[rank - 1];
}

Peaks peaks_of(const float* row, int64_t count) {
  Floats most[4];
  for (Floats& m : most) m = broadcast(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < count; i += 64) {
    EAGRE_UNROLL(4)
    for (int v = 0; v < 4; ++v) most[v] = max(most[v], load(row + i + 16 * v));
  }
  Peaks peaks;
  for (int v = 0; v < 4; ++v) store(peaks.parts + 16 * v, most[v]);
  return peaks;
}

int64_t first_best(const float* row, int64_t count, float best) {
  for (int64_t i = 0; i < count; i += 16) {
    if (const uint32_t bits = bits_of(at_least(load(row + i), broadcast(best)))) return i + __builtin_ctz(bits);
  }
  return 0;
}

}  // namespace eagre
