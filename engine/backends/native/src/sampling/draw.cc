#include "sampling/draw.h"

#include "vectors/padded_row.h"

namespace eagre {

int64_t draw(const float* weights, int64_t count, float uniform) {
  const auto weight = [&](int64_t i) { return load(weights + i); };
  const double target = uniform * sum_of(count, weight);
  double running = 0;
  int64_t block = 0;
  while (block + kRowBlock < count) {  // these sums make up the total, so one of them passes the target
    const double next = running + block_sum(block, weight);
    if (next > target) break;
    running = next;
    block += kRowBlock;
  }
  int64_t chosen = block;  // the block's last token of a positive weight, where rounding leaves none beyond the target
  for (int64_t i = block; i < block + kRowBlock && running <= target; ++i) {
    if (weights[i] <= 0.0f) continue;
    chosen = i;
    running += weights[i];
  }
  return chosen;
}

}  // namespace eagre
