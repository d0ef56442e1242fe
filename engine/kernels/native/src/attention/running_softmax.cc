#include "attention/running_softmax.h"

#include <algorithm>
#include <limits>

#include "isa/isa.h"
#include "vectors/elementary.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

int64_t padded(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// A row that has seen nothing yet has a best score of minus infinity, and that less itself is no number.
Floats finite(Floats best) { return choose(at_least(broadcast(kMinusInfinity), best), zeros(), best); }

// Scales and caps the scores of a row, hides what it does not see, and gives back the largest one.
Floats finish_scores(const float* key_scales, float softcap, int num_vectors, int hidden, int visible, float* scores) {
  Floats most = broadcast(kMinusInfinity);
  for (int v = 0; v < num_vectors; ++v) {
    Floats score = load(scores + v * kLanes);
    if (key_scales != nullptr) score = mul(score, load(key_scales + v * kLanes));
    if (softcap > 0.0f) score = mul(broadcast(softcap), tanh(div(score, broadcast(softcap))));
    const int end = std::clamp(visible - v * kLanes, 0, kLanes), begin = std::clamp(hidden - v * kLanes, 0, kLanes);
    if (end < kLanes) score = first_lanes(score, end, broadcast(kMinusInfinity));
    if (begin > 0) score = first_lanes(broadcast(kMinusInfinity), begin, score);
    store(scores + v * kLanes, score);
    most = max(most, score);
  }
  return most;
}

// Makes weights of the scores of a row, in their place, and gives back their sums.
template <bool kIsFloat>
Floats weigh(const float* value_scales, float best, int num_vectors, float* scores) {
  Floats total = zeros();
  for (int v = 0; v < num_vectors; ++v) {
    Floats weight = exp2(sub(load(scores + v * kLanes), broadcast(best)));
    total = add(total, weight);
    if (value_scales != nullptr) weight = mul(weight, load(value_scales + v * kLanes));
    if constexpr (kIsFloat) {
      store(scores + v * kLanes, weight);
    } else {
      store_bf16(reinterpret_cast<uint16_t*>(scores) + v * kLanes, weight);
    }
  }
  return total;
}

}  // namespace

void attend_rows(const Pages& pages, const Block& block, float softcap, const std::byte* queries, int num_rows,
                 const Sight& sight, State state) {
  const ProductKind kind{multiplies_floats(pages), static_cast<int>(pages.head_dim)};
  const bool has_scales = pages.type == PageType::kInt8;
  const float* const value_scales = has_scales ? block.value_scales : nullptr;
  const int num_vectors = (sight.num_keys + kLanes - 1) / kLanes;
  alignas(64) float scores[kRowsAtOnce * kBlockKeys];
  multiply_keys(kind, block, queries, num_rows, num_vectors, scores);

  alignas(64) float best[kRowsAtOnce], shrinks[kRowsAtOnce];
  std::fill_n(best, kRowsAtOnce, kMinusInfinity);
  if (sight.is_whole && !has_scales && softcap == 0.0f) {
    for (int r = 0; r < num_rows; ++r) {
      Floats most = load(scores + r * kBlockKeys);
      for (int v = 1; v < num_vectors; ++v) most = max(most, load(scores + r * kBlockKeys + v * kLanes));
      best[r] = largest(most);
    }
  } else {
    for (int r = 0; r < num_rows; ++r) {
      best[r] = largest(finish_scores(has_scales ? block.key_scales : nullptr, softcap * kLog2E, num_vectors,
                                      sight.hidden[r], sight.visible[r], scores + r * kBlockKeys));
    }
  }
  for (int r = 0; r < num_rows; r += kLanes) {
    const Floats before = load(state.best + r), now = max(load(best + r), before), shift = finite(now);
    store(shrinks + r, exp2(sub(before, shift)));
    store(state.best + r, now);
    store(best + r, shift);
  }
  const auto weigh_row = kind.is_float ? weigh<true> : weigh<false>;
  for (int r = 0; r < num_rows; ++r) {
    const Floats total = weigh_row(value_scales, best[r], num_vectors, scores + r * kBlockKeys);
    float* kept = state.total + r * kLanes;
    store(kept, add(mul(load(kept), broadcast(shrinks[r])), total));
  }
  multiply_values(kind, block, scores, num_rows, sight.num_keys, shrinks, state.mix);
}

void clear(State s, int64_t count, int64_t head_dim) {
  std::fill_n(s.best, padded(count), kMinusInfinity);
  std::fill_n(s.total, count * kLanes, 0.0f);
  std::fill_n(s.mix, count * head_dim, 0.0f);
}

void merge(State s, State other, int64_t count, int64_t head_dim) {
  const auto add_scaled = [](float* to, float mine, const float* from, float theirs) {
    store(to, fma(load(from), broadcast(theirs), mul(load(to), broadcast(mine))));
  };
  for (int64_t first = 0; first < count; first += kLanes) {
    const Floats before = load(s.best + first), later = load(other.best + first);
    const Floats best = max(later, before), shift = finite(best);
    alignas(64) float mine[kLanes], theirs[kLanes];
    store(mine, exp2(sub(before, shift)));
    store(theirs, exp2(sub(later, shift)));
    store(s.best + first, best);
    for (int64_t r = first; r < std::min(count, first + kLanes); ++r) {
      const float kept = mine[r - first], added = theirs[r - first];
      add_scaled(s.total + r * kLanes, kept, other.total + r * kLanes, added);
      for (int64_t i = r * head_dim; i < (r + 1) * head_dim; i += kLanes) add_scaled(s.mix + i, kept, other.mix + i, added);
    }
  }
}

State state_at(float* memory, int64_t count) {
  const int64_t rows = padded(count);
  return {memory, memory + rows, memory + rows + rows * kLanes};
}

int64_t state_floats(int64_t count, int64_t head_dim) { return padded(count) * (1 + kLanes + head_dim); }

State state_from(State s, int64_t row, int64_t head_dim) {
  return {s.best + row, s.total + row * kLanes, s.mix + row * head_dim};
}

}  // namespace eagre
