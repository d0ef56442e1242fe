#include "sampling/argmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "isa/isa.h"
#include "runtime/scratch.h"

namespace eagre {
namespace {

constexpr int64_t kPart = 4096;  // logits of one task: a row alone still occupies all threads
constexpr int kVectors = 4;      // in flight
constexpr int64_t kStride = kVectors * 16;

struct Best {
  float value;  // NaN where the part has one
  int64_t index;
};

Best best_of(const float* x, int64_t count) {
  Floats most[kVectors], trace = zeros();
  for (Floats& m : most) m = broadcast(-std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kStride <= count; i += kStride) {
    for (int v = 0; v < kVectors; ++v) {
      const Floats value = load(x + i + v * 16);
      most[v] = max(most[v], value);
      trace = fma(value, zeros(), trace);
    }
  }
  float value = largest(max(max(most[0], most[1]), max(most[2], most[3])));
  for (; i < count; ++i) {
    trace = fma(broadcast(x[i]), zeros(), trace);
    value = std::max(value, x[i]);
  }
  // The trace of an infinity is NaN too; which of the two it was is rarely asked.
  if (std::isnan(sum(trace)) && std::any_of(x, x + count, [](float logit) { return std::isnan(logit); })) {
    return {std::numeric_limits<float>::quiet_NaN(), 0};
  }
  return {value, std::find(x, x + count, value) - x};
}

}  // namespace

void argmax(Pool& pool, const float* logits, int64_t num_rows, int64_t num_logits, const int32_t* slots,
            int64_t num_slots, int32_t* tokens) {
  static Scratch& memory = *new Scratch;  // the caller holds the pool
  const int64_t num_parts = (num_logits + kPart - 1) / kPart;
  Best* best = memory.take<Best>(num_rows * num_parts);
  const auto is_real = [&](int64_t row) { return slots[row] >= 0 && slots[row] < num_slots; };
  pool.run(num_rows * num_parts, [&](int64_t task, int) {
    const int64_t row = task / num_parts, first = task % num_parts * kPart;
    if (!is_real(row)) return;
    best[task] = best_of(logits + row * num_logits + first, std::min(kPart, num_logits - first));
    best[task].index += first;
  });
  for (int64_t row = 0; row < num_rows; ++row) {
    tokens[row] = static_cast<int32_t>(num_logits);
    if (!is_real(row)) continue;
    Best whole = best[row * num_parts];
    for (int64_t part = 1; part < num_parts; ++part) {
      const Best& next = best[row * num_parts + part];
      if (!(next.value <= whole.value)) whole = std::isnan(whole.value) ? whole : next;
    }
    if (!std::isnan(whole.value)) tokens[row] = static_cast<int32_t>(whole.index);
  }
}

}  // namespace eagre
