#include "products/low_rank.h"

#include <algorithm>

#include "isa/isa.h"
#include "runtime/scratch.h"

namespace eagre {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kOutputsPerTask = 512;
constexpr int kVectors = 4;  // whose sums are computed together

// kRankMultiple products of a row with neighbouring rows of `down`, each times `scale`.
void multiply_down(const float* x, const float* down, int64_t num_inputs, float scale, float* inner) {
  Floats sums[kRankMultiple] = {zeros(), zeros(), zeros(), zeros()};
  for (int64_t i = 0; i < num_inputs; i += kLanes) {
    const Floats inputs = load(x + i);
    for (int64_t row = 0; row < kRankMultiple; ++row) {
      sums[row] = fma(inputs, load(down + row * num_inputs + i), sums[row]);
    }
  }
  for (int64_t row = 0; row < kRankMultiple; ++row) inner[row] = scale * sum(sums[row]);
}

template <int kCount>
void multiply_up(const float* inner, const float* up, int64_t rank, int64_t num_outputs, float* y) {
  Floats sums[kCount];
  for (int i = 0; i < kCount; ++i) sums[i] = zeros();
  for (int64_t row = 0; row < rank; ++row) {
    const Floats factor = broadcast(inner[row]);
    for (int i = 0; i < kCount; ++i) sums[i] = fma(factor, load(up + row * num_outputs + i * kLanes), sums[i]);
  }
  for (int i = 0; i < kCount; ++i) store(y + i * kLanes, sums[i]);
}

// The outputs of a token from `begin` to `end`; inner: [parts][rank].
void multiply_outputs(const LowRank& pairs, int32_t slot, const float* inner, int64_t begin, int64_t end, float* y) {
  const int64_t rank = slot < 0 ? 0 : pairs.ranks[slot];
  if (rank == 0) {
    std::fill(y + begin, y + end, 0.0f);
    return;
  }
  const float* up = pairs.up + slot * pairs.up_stride;
  int64_t part = 0;
  for (int64_t at = begin; at < end;) {
    while (pairs.ends[part] <= at) ++part;
    const int64_t limit = std::min(end, pairs.ends[part]);
    const float* own = inner + part * pairs.rank;
    for (; at + kVectors * kLanes <= limit; at += kVectors * kLanes) {
      multiply_up<kVectors>(own, up + at, rank, pairs.num_outputs, y + at);
    }
    for (; at < limit; at += kLanes) multiply_up<1>(own, up + at, rank, pairs.num_outputs, y + at);
  }
}

}  // namespace

void multiply_low_rank(Pool& pool, const std::vector<AdaptedToken>& tokens, const LowRank& pairs, const float* x,
                       float* y) {
  static Scratch& memory = *new Scratch;  // the caller holds the pool
  const int64_t num_rows = pairs.num_parts * pairs.rank, num_tokens = static_cast<int64_t>(tokens.size());
  float* inner = memory.take<float>(static_cast<size_t>(num_tokens * num_rows));
  // A task has few rows of the weights and all tokens, so that those of one adapter read them from the nearest cache.
  const auto down = [&](int64_t task, int) {
    const int64_t first = task * kRankMultiple;
    for (int64_t i = 0; i < num_tokens; ++i) {
      const AdaptedToken& token = tokens[i];
      if (token.slot < 0 || first % pairs.rank >= pairs.ranks[token.slot]) continue;
      multiply_down(x + token.token * pairs.num_inputs,
                    pairs.down + token.slot * pairs.down_stride + first * pairs.num_inputs, pairs.num_inputs,
                    token.scale, inner + i * num_rows + first);
    }
  };
  const auto is_adapted = [&](const AdaptedToken& token) { return token.slot >= 0 && pairs.ranks[token.slot] > 0; };
  if (std::any_of(tokens.begin(), tokens.end(), is_adapted)) pool.run(num_rows / kRankMultiple, down);
  pool.run((pairs.num_outputs + kOutputsPerTask - 1) / kOutputsPerTask, [&](int64_t task, int) {
    const int64_t begin = task * kOutputsPerTask, end = std::min(pairs.num_outputs, begin + kOutputsPerTask);
    for (int64_t i = 0; i < num_tokens; ++i) {
      multiply_outputs(pairs, tokens[i].slot, inner + i * num_rows, begin, end, y + tokens[i].token * pairs.num_outputs);
    }
  });
}

}  // namespace eagre
