#include "filters/filters.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vectors/elementary.h"

namespace eagre {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kAboveZero = std::numeric_limits<float>::min();  // no denormal number: they may count as 0

// A weight so small that all tokens below it together have less than half of the share that may be removed.
float surely_too_light(const Weights& left, float share) {
  return static_cast<float>(0.5 * (1.0 - share) * left.total / static_cast<double>(left.count));
}

// Sets the weights to 0 of those tokens that are not in the mask keeps(i).
template <class Keeps>
void keep_where(Weights& left, const Keeps& keeps) {
  left.total = sum_of(left.count, [&](int64_t i) {
    const Floats kept = choose(keeps(i), load(left.weights + i), zeros());
    store(left.weights + i, kept);
    return kept;
  });
}

}  // namespace

float top_n_sigma_floor(const Logits& logits, float top_n_sigma) {
  const Floats lowest = broadcast(kLowest);
  int64_t count = 0;
  const double sum = sum_of(logits.count, [&](int64_t i) {
    const Floats x = logits.centred(i);
    const Mask is_left = at_least(x, lowest);
    count += __builtin_popcount(bits_of(is_left));
    return choose(is_left, x, zeros());
  });
  const float mean = static_cast<float>(sum / static_cast<double>(count));
  const double squares = sum_of(logits.count, [&](int64_t i) {
    const Floats x = logits.centred(i), distance = sub(x, broadcast(mean));
    return choose(at_least(x, lowest), mul(distance, distance), zeros());
  });
  return -top_n_sigma * std::sqrt(static_cast<float>(squares / static_cast<double>(count)));
}

float top_k_floor(const Logits& logits, const Peaks& peaks, int64_t top_k, const SearchMemory& memory) {
  const auto count_from = [&](float least) {
    int64_t count = 0;
    for (int64_t i = 0; i < logits.count; i += 16) {
      count += __builtin_popcount(bits_of(at_least(logits.centred(i), broadcast(least))));
    }
    return count;
  };
  float low = peaks.at_most(static_cast<int>(std::min<int64_t>(top_k, Peaks::kParts))) - logits.best;
  if (top_k > Peaks::kParts) {
    if (count_from(kLowest) <= top_k) return kMinusInfinity;
    // The bound falls in growing strides until enough logits reach it, because only few lie far below the usual ones.
    for (float stride = 1.25f; count_from(low) < top_k; stride *= stride) low = std::min(low * stride, -1.0f);
  }
  // Logits that are surely not among them are left out at once.
  int64_t count = 0;
  for (int64_t i = 0; i < logits.count; i += 16) {
    const Floats x = logits.centred(i);
    if (const uint32_t bits = bits_of(at_least(x, broadcast(low)))) count += store_chosen(memory.keys + count, bits, x);
  }
  const int64_t end = padded(count);
  std::fill(memory.keys + count, memory.keys + end, kMinusInfinity);
  return largest_threshold({memory.keys, nullptr, end}, low, kAboveZero, static_cast<double>(top_k), Spacing::kEven,
                           memory);
}

Weights weigh(const Logits& logits, float floor, float min_p, float* weights) {
  const Floats least = broadcast(floor), least_scaled = broadcast(std::log(min_p));
  const double total = sum_of(logits.count, [&](int64_t i) {
    const Floats centred = logits.centred(i);
    Floats weight = zeros();
    if (const Mask is_kept = at_least(centred, least); bits_of(is_kept) != 0) {
      const Floats scaled = div(centred, broadcast(logits.temperature));
      weight = choose(both(is_kept, at_least(scaled, least_scaled)), exp(scaled), zeros());
    }
    store(weights + i, weight);
    return weight;
  });
  return {weights, logits.count, total};
}

void filter_typical_p(const Logits& logits, float typical_p, Weights& left, const SearchMemory& memory) {
  // A token's surprise is log(total) - scaled, and the entropy is the average surprise.
  const double mean = sum_of(left.count, [&](int64_t i) {
    const Floats weight = load(left.weights + i);
    const Mask is_left = at_least(weight, broadcast(kAboveZero));
    return mul(weight, choose(is_left, logits.scaled(i), zeros()));
  }) / left.total;
  const Floats typical = broadcast(static_cast<float>(mean));
  const auto key = [&](int64_t i) {  // is larger the closer the surprise is to the entropy
    const Mask is_left = at_least(load(left.weights + i), broadcast(kAboveZero));
    const Floats distance = abs(sub(logits.scaled(i), typical));
    return choose(is_left, sub(zeros(), distance), broadcast(kMinusInfinity));
  };
  for (int64_t i = 0; i < left.count; i += 16) store(memory.keys + i, key(i));
  // Tokens further away than this are lighter than what may be removed, because no more probable token is so far away.
  const double lightest = std::log(surely_too_light(left, typical_p));
  const float low = static_cast<float>(-1.0 - std::max(-mean, mean - lightest));
  const float threshold = largest_threshold({memory.keys, left.weights, left.count}, low, kAboveZero,
                                            typical_p * left.total, Spacing::kEven, memory);
  keep_where(left, [&](int64_t i) { return at_least(key(i), broadcast(threshold)); });
}

void filter_top_p(float top_p, Weights& left, const SearchMemory& memory) {
  const float threshold =
      largest_threshold({left.weights, left.weights, left.count}, surely_too_light(left, top_p), 2.0f,
                        top_p * left.total, Spacing::kExponential, {memory.keys, memory.keys});
  keep_where(left, [&](int64_t i) { return at_least(load(left.weights + i), broadcast(threshold)); });
}

void filter_xtc(float threshold, Weights& left) {
  const float from = std::max(static_cast<float>(threshold * left.total), kAboveZero);
  const Floats least_top = broadcast(from);
  // The smallest weight is found as the largest of the negated ones, because isa.h has a maximum and no minimum.
  Floats most = broadcast(kMinusInfinity);
  for (int64_t i = 0; i < left.count; i += 16) {
    const Floats weight = load(left.weights + i);
    most = max(choose(at_least(weight, least_top), sub(zeros(), weight), most), most);
  }
  const float least = -largest(most);
  if (least == -kMinusInfinity) return;
  int64_t spared = 0;
  for (int64_t i = 0; i < left.count; i += 16) {
    const Floats weight = load(left.weights + i);
    const uint32_t tops = bits_of(at_least(weight, least_top));
    if (tops == 0) continue;
    const uint32_t smallest = tops & bits_of(at_least(broadcast(least), weight));
    if (smallest != 0) spared = i + 31 - __builtin_clz(smallest);
    store(left.weights + i, choose(mask_of(tops), zeros(), weight));
  }
  left.weights[spared] = least;
}

}  // namespace eagre
