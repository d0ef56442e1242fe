#include "attention/running_softmax.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "isa/attention_isa.h"
#include "isa/reductions.h"
#include "isa/isa.h"
#include "vectors/elementary.h"
#include "vectors/magnitudes.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kByteSteps = 255.0f, kLog2OfByteSteps = 7.99435344f;  // of a weight

#ifndef EAGRE_HAS_COARSE_EXP2
Floats coarse_exp2(Floats x) { return exp2(x); }
#endif

int64_t padded(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// A row that has seen nothing yet has a best score of minus infinity, and that less itself is no number.
Floats finite(Floats best) { return choose(at_least(broadcast(kMinusInfinity), best), zeros(), best); }

Floats as_bfloat16(Floats x) {
  alignas(64) uint16_t rounded[kLanes];
  store_bf16(rounded, x);
  return load_bf16(rounded);
}

// The scores of a row and 16 keys, of which the first one is at `first_key`, with what their places add.
Floats with_biases(Floats score, const PlaceBiases& biases, int row, float first_key) {
  alignas(64) static constexpr float kNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Floats keys = add(broadcast(first_key), load(kNumbers)), slope = broadcast(biases.slopes[row]);
  if (biases.rounded_scale != 0.0f) {
    return fma(as_bfloat16(mul(slope, as_bfloat16(keys))), broadcast(biases.rounded_scale), score);
  }
  return fma(abs(sub(broadcast(biases.positions[row]), keys)), sub(zeros(), slope), score);
}

// Scales and caps the scores of a row, adds its biases and `addends`, and hides what it does not see. The largest one is in
// one of 16 lanes.
Floats finish_scores(const float* key_scales, float softcap, const PlaceBiases& biases, const float* addends,
                     const Sight& sight, int row, int num_vectors, float* scores) {
  const int hidden = sight.hidden[row], visible = sight.visible[row];
  Floats most = broadcast(kMinusInfinity);
  for (int v = 0; v < num_vectors; ++v) {
    Floats score = load(scores + v * kLanes);
    if (key_scales != nullptr) score = mul(score, load(key_scales + v * kLanes));
    if (softcap > 0.0f) score = mul(broadcast(softcap), tanh(div(score, broadcast(softcap))));
    if (biases.slopes != nullptr) score = with_biases(score, biases, row, biases.first_key + static_cast<float>(v * kLanes));
    if (addends != nullptr) score = add(score, load(addends + v * kLanes));
    const int end = std::clamp(visible - v * kLanes, 0, kLanes), begin = std::clamp(hidden - v * kLanes, 0, kLanes);
    if (end < kLanes) score = first_lanes(score, end, broadcast(kMinusInfinity));
    if (begin > 0) score = first_lanes(broadcast(kMinusInfinity), begin, score);
    if (sight.picked != nullptr) {
      score = choose(mask_of(static_cast<uint32_t>(sight.picked[row] >> (v * kLanes) & 0xffffu)), score,
                     broadcast(kMinusInfinity));
    }
    store(scores + v * kLanes, score);
    most = max(most, score);
  }
  return most;
}

// The largest score of a row that sees all keys, in any of 16 lanes. A count that is a constant spares the loop.
template <class Count>
[[gnu::always_inline]] inline Floats most_of(Count num_vectors, const float* scores) {
  Floats most = load(scores);
  EAGRE_UNROLL(4)
  for (int v = 1; v < num_vectors; ++v) most = max(most, load(scores + v * kLanes));
  return most;
}

// The same of scores that are scaled first, in their place.
Floats scale_scores(const float* key_scales, int num_vectors, float* scores) {
  Floats most = broadcast(kMinusInfinity);
  for (int v = 0; v < num_vectors; ++v) {
    const Floats score = mul(load(scores + v * kLanes), load(key_scales + v * kLanes));
    store(scores + v * kLanes, score);
    most = max(most, score);
  }
  return most;
}

// Makes weights of scores, in their place, and adds their sums to the totals.
// shifts: what is subtracted from the scores of each row; shrinks: what its total so far is multiplied with.
template <bool kIsFloat, class Count>
void weigh(const float* value_scales, const float* shifts, const float* shrinks, int num_rows, Count num_vectors,
           float* scores, float* totals) {
  for (int r = 0; r < num_rows; ++r, scores += kBlockKeys, totals += kLanes) {
    uint16_t* const halves = reinterpret_cast<uint16_t*>(scores);
    const Floats shift = broadcast(shifts[r]);
    Floats total = zeros();
    EAGRE_UNROLL(4)
    for (int v = 0; v < num_vectors; ++v) {
      const Floats score = sub(load(scores + v * kLanes), shift);
      Floats weight = kIsFloat ? exp2(score) : coarse_exp2(score);
      total = add(total, weight);
      if (value_scales != nullptr) weight = mul(weight, load(value_scales + v * kLanes));
      if constexpr (kIsFloat) {
        store(scores + v * kLanes, weight);
      } else {
        store_bf16(halves + v * kLanes, weight);
      }
    }
    // Tile registers take two vectors of weights at once.
    if (!kIsFloat && num_vectors % 2 == 1) store_bf16(halves + num_vectors * kLanes, zeros());
    store(totals, add(mul(load(totals), broadcast(shrinks[r])), total));
  }
}

// The same for values that are integers of 16 bits: makes such integers of weights times the scales of their values, and of
// each row the step that they are counted in, so that their sum needs all of the bits: what they are multiplied with has all
// bits as well. Neither a key of far more weight elsewhere nor one of this block whose values are next to nothing takes bits
// away from the others.
template <class Count>
void weigh_in_steps(const float* value_scales, const Sight& sight, const float* shifts, const float* shrinks, int num_rows,
                    Count num_vectors, float* scores, float* totals, float* steps) {
  alignas(64) float seen[kBlockKeys], per_product[kLanes];
  // What is no number, which integers would not show. (Where a score is none, the total shows it.)
  const float of_all = sight.is_whole ? not_finite(value_scales, kBlockKeys) : 0.0f;
  for (int first = 0; first < num_rows; first += kLanes) {
    const int count = std::min(kLanes, num_rows - first);
    alignas(64) float not_known[kLanes] = {};
    Floats products[kLanes];  // of each row their sums
    for (int i = count; i < kLanes; ++i) products[i] = zeros();
    for (int i = 0; i < count; ++i) {
      const int r = first + i;
      float* const row = scores + r * kBlockKeys;
      const float* scales = value_scales;
      not_known[i] = of_all;
      if (!sight.is_whole) {  // what a row does not see may have a scale that is no number
        std::fill_n(seen, kBlockKeys, 0.0f);
        const int begin = sight.hidden[r], end = std::max(begin, sight.visible[r]);
        std::copy(value_scales + begin, value_scales + end, seen + begin);
        scales = seen;
        not_known[i] = not_finite(seen, kBlockKeys);
      }
      const Floats shift = broadcast(shifts[r]);
      Floats total = zeros(), all = zeros();
      EAGRE_UNROLL(4)
      for (int v = 0; v < num_vectors; ++v) {
        const Floats weight = coarse_exp2(sub(load(row + v * kLanes), shift));
        const Floats product = mul(weight, load(scales + v * kLanes));
        store(row + v * kLanes, product);
        total = add(total, weight);
        all = add(all, product);
      }
      products[i] = all;
      store(totals + r * kLanes, add(mul(load(totals + r * kLanes), broadcast(shrinks[r])), total));
    }
    const Floats of_each = sum_of_each(products);
    store(per_product, mul(inverses_of(of_each), broadcast(kInt16Max)));
    store(steps + first, fma(of_each, broadcast(1.0f / kInt16Max), load(not_known)));
    for (int i = 0; i < count; ++i) {
      float* const row = scores + (first + i) * kBlockKeys;
      EAGRE_UNROLL(4)
      for (int v = 0; v < num_vectors; ++v) {
        store_16_bits(reinterpret_cast<int16_t*>(row) + v * kLanes, mul(load(row + v * kLanes), broadcast(per_product[i])));
      }
    }
  }
}

#if EAGRE_MULTIPLIES_INTEGERS
// The same for values that are int8, of scores that have the powers of two added that the values' scales are: makes bytes of
// weights times these scales, in `steps` of a 255th of what the row has most of in this block.
// shifts: the largest scores of the block less the power of two that 255 is. (Of very large scores this difference is
// rounded so much that the largest weight becomes 256.)
template <class Count>
void weigh_in_bytes(const float* inverses, const float* shifts, const float* shrinks, const float* steps, int num_rows,
                    Count num_vectors, float* scores, float* totals) {
  for (int r = 0; r < num_rows; ++r, scores += kBlockKeys, totals += kLanes) {
    const Floats shift = broadcast(shifts[r]);
    Floats total = zeros(), parts[kKeyVectors] = {zeros(), zeros(), zeros(), zeros()};
    EAGRE_UNROLL(4)
    for (int v = 0; v < num_vectors; ++v) {
      parts[v] = coarse_exp2(sub(load(scores + v * kLanes), shift));
      total = fma(parts[v], load(inverses + v * kLanes), total);
    }
    store_byte_factors(reinterpret_cast<std::byte*>(scores), parts);
    store(totals, fma(total, broadcast(steps[r]), mul(load(totals), broadcast(shrinks[r]))));
  }
}
#endif

}  // namespace

void attend_rows(const Pages& pages, const HeadQueries* heads, int num_heads, float softcap, int rows_per_head,
                 const Sight& sight, const PlaceBiases& biases, State state) {
  const ProductKind kind{factors_of(pages), static_cast<int>(pages.head_dim)};
  const bool is_scaled = has_scales(pages);
  const bool is_linear = softcap == 0.0f && biases.slopes == nullptr;
  const bool is_plain = is_linear && sight.is_whole && sight.picked == nullptr;
  const bool is_integer = is_of_integers(kind.factors), is_bytes = kind.factors == Factors::kBytes;
  const bool scales_scores = is_scaled && !is_integer;
  const int num_rows = num_heads * rows_per_head, num_vectors = (sight.num_keys + kLanes - 1) / kLanes;
  alignas(64) float scores[kRowsAtOnce * kBlockKeys], shifts[kRowsAtOnce], shrinks[kRowsAtOnce];
  alignas(64) float steps[kRowsAtOnce + kLanes];  // of integers alone; sixteen are written at once
  alignas(64) static constexpr float kNothing[kBlockKeys] = {};
  // Logarithms of values' scales are added to the scores as they are scaled, which takes no time, or else at the end.
  for (int head = 0; head < num_heads; ++head) {
    const Block& block = *heads[head].block;
    multiply_keys(kind, block, heads[head].queries, rows_per_head, num_vectors, is_linear ? block.value_logs : kNothing,
                  scores + head * rows_per_head * kBlockKeys);
  }
  const bool is_bare = is_plain && !scales_scores && num_vectors == kKeyVectors;  // as nearly all of a prompt's are
  for (int first = 0; first < num_rows; first += kLanes) {
    Floats most[kLanes];
    const int count = std::min(kLanes, num_rows - first);
    float* const rows = scores + first * kBlockKeys;
    if (is_bare && count == kLanes) {
      EAGRE_UNROLL(16)
      for (int i = 0; i < kLanes; ++i) {
        most[i] = most_of(std::integral_constant<int, kKeyVectors>(), rows + i * kBlockKeys);
      }
    } else if (is_bare) {
      for (int i = 0; i < count; ++i) {
        most[i] = most_of(std::integral_constant<int, kKeyVectors>(), rows + i * kBlockKeys);
      }
    } else {
      for (int i = 0; i < count; ++i) {
        const int r = first + i;
        float* const row = rows + i * kBlockKeys;
        const Block& block = *heads[r / rows_per_head].block;
        const float* const key_scales = scales_scores ? block.key_scales : nullptr;
        const float* const addends = is_bytes && !is_linear ? block.value_logs : nullptr;
        most[i] = is_plain && scales_scores ? scale_scores(key_scales, num_vectors, row)
                  : is_plain ? most_of(num_vectors, row)
                  : finish_scores(key_scales, softcap * kLog2E, biases, addends, sight, r, num_vectors, row);
      }
    }
    for (int i = count; i < kLanes; ++i) most[i] = broadcast(kMinusInfinity);
    const Floats before = load(state.best + first), of_block = largest_of_each(most), best = max(of_block, before);
    const Floats shift = finite(best);
    store(state.best + first, best);
    store(shrinks + first, exp2(sub(before, shift)));
    store(shifts + first, is_bytes ? sub(finite(of_block), broadcast(kLog2OfByteSteps)) : shift);
    if (is_bytes) store(steps + first, mul(exp2(sub(of_block, shift)), broadcast(1.0f / kByteSteps)));
  }
  const auto weigh_all = [&](int head, auto count) {
    const int first = head * rows_per_head;
    const Block& block = *heads[head].block;
    const float* const value_scales = is_scaled ? block.value_scales : nullptr;
    float *const own = scores + first * kBlockKeys, *const totals = state.total + first * kLanes;
#if EAGRE_MULTIPLIES_INTEGERS
    if (is_bytes) {
      return weigh_in_bytes(block.value_inverses, shifts + first, shrinks + first, steps + first, rows_per_head, count, own,
                            totals);
    }
#endif
    if (is_integer) {
      const Sight seen{sight.num_keys, sight.hidden + first, sight.visible + first, sight.is_whole, sight.picked};
      return weigh_in_steps(value_scales, seen, shifts + first, shrinks + first, rows_per_head, count, own, totals, steps + first);
    }
    const auto weigh_rows = kind.factors == Factors::kPairs ? weigh<false, decltype(count)> : weigh<true, decltype(count)>;
    weigh_rows(value_scales, shifts + first, shrinks + first, rows_per_head, count, own, totals);
  };
  for (int head = 0; head < num_heads; ++head) {
    if (num_vectors == kKeyVectors) {
      weigh_all(head, std::integral_constant<int, kKeyVectors>());
    } else {
      weigh_all(head, num_vectors);
    }
  }
  for (int head = 0; head < num_heads; ++head) {
    const int first = head * rows_per_head;
    multiply_values(kind, *heads[head].block, scores + first * kBlockKeys, rows_per_head, sight.num_keys, shrinks + first,
                    steps + first, state.mix + first * pages.head_dim);
    // (The products of a whole block have asked for all.)
    const Block& block = *heads[head].block;
    if (num_vectors < kKeyVectors && block.is_near) block.prefetch_beside_values.prefetch_rest();
  }
}

void clear(State s, int64_t count, int64_t head_dim) {
  std::fill_n(s.best, padded(count) + kLanes, kMinusInfinity);
  std::fill_n(s.total, count * kLanes, 0.0f);
  std::fill_n(s.mix, count * head_dim, 0.0f);
}

void copy_rows(State s, int64_t first, int64_t count, int64_t head_dim, State to) {
  std::fill(std::copy_n(s.best + first, count, to.best), to.best + padded(count), kMinusInfinity);
  std::copy_n(s.total + first * kLanes, count * kLanes, to.total);
  std::copy_n(s.mix + first * head_dim, count * head_dim, to.mix);
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
  float* const total = memory + rows + kLanes;
  return {memory, total, total + rows * kLanes};
}

int64_t state_floats(int64_t count, int64_t head_dim) { return padded(count) * (1 + kLanes + head_dim) + kLanes; }

State state_from(State s, int64_t row, int64_t head_dim) {
  return {s.best + row, s.total + row * kLanes, s.mix + row * head_dim};
}

}  // namespace eagre
