#include "attention/running_softmax.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "isa/isa.h"
#include "vectors/elementary.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;
constexpr int kKeyVectors = kBlockKeys / kLanes;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// What the query rows of one call have in common.
struct Call {
  const Block& block;
  bool has_scales;
  int head_dim, num_keys;
  float softcap;  // of scores in powers of two
  const std::byte* const* queries;
  const int* hidden;
  const int* visible;
};

template <bool kIsFloat, bool kIsCapped, int R>
void attend_block(const Call& call, State state) {
  const Block& block = call.block;
  const bool has_scales = call.has_scales;
  const int head_dim = call.head_dim, num_keys = call.num_keys;
  const std::byte* const* queries = call.queries;
  const int* hidden = call.hidden;
  const int* visible = call.visible;
  const int num_words = kIsFloat ? head_dim : head_dim / 2;
  Floats scores[R][kKeyVectors];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kKeyVectors; ++v) scores[r][v] = zeros();
  for (int word = 0; word < num_words; ++word) {
    Words keys[kKeyVectors];
    for (int v = 0; v < kKeyVectors; ++v) keys[v] = load_words(block.keys + word * kBlockKeys + v * kLanes);
    EAGRE_UNROLL(4)
    for (int r = 0; r < R; ++r) {
      EAGRE_UNROLL(4)
      for (int v = 0; v < kKeyVectors; ++v) {
        if constexpr (kIsFloat) {
          const float q = *reinterpret_cast<const float*>(queries[r] + word * 4);
          scores[r][v] = fma(as_floats(keys[v]), broadcast(q), scores[r][v]);
        } else {
          scores[r][v] = dot2(scores[r][v], keys[v], queries[r] + word * 4);
        }
      }
    }
  }
  alignas(64) float floats[R][kBlockKeys];
  alignas(64) uint16_t halves[R][kBlockKeys];
  float shrinks[R];
  for (int r = 0; r < R; ++r) {
    Floats most = broadcast(kMinusInfinity);
    for (int v = 0; v < kKeyVectors; ++v) {
      if (has_scales) scores[r][v] = mul(scores[r][v], load(block.key_scales + v * kLanes));
      if constexpr (kIsCapped) {
        const Floats cap = broadcast(call.softcap);
        scores[r][v] = mul(cap, tanh(div(scores[r][v], cap)));
      }
      const int end = std::clamp(visible[r] - v * kLanes, 0, kLanes);
      const int begin = std::clamp(hidden[r] - v * kLanes, 0, kLanes);
      if (end < kLanes) scores[r][v] = first_lanes(scores[r][v], end, broadcast(kMinusInfinity));
      if (begin > 0) scores[r][v] = first_lanes(broadcast(kMinusInfinity), begin, scores[r][v]);
      most = max(most, scores[r][v]);
    }
    const float best = std::max(state.best[r], largest(most));
    // A row that has seen nothing yet has a best score of minus infinity, and that less itself is no number.
    const float shift = best == kMinusInfinity ? 0.0f : best;
    Floats total = zeros();
    for (int v = 0; v < kKeyVectors; ++v) {
      const Floats score = sub(scores[r][v], broadcast(shift));
      Floats weight = exp2(score);
      total = add(total, weight);
      if (has_scales) weight = mul(weight, load(block.value_scales + v * kLanes));
      if constexpr (kIsFloat) {
        store(floats[r] + v * kLanes, weight);
      } else {
        store_bf16(halves[r] + v * kLanes, weight);
      }
    }
    const float shrink = std::exp2(state.best[r] - shift);
    shrinks[r] = shrink;
    state.best[r] = best;
    state.total[r] = state.total[r] * shrink + sum(total);
  }
  const int num_steps = kIsFloat ? num_keys : (num_keys + 1) / 2;
  for (int column = 0; column < head_dim; column += 4 * kLanes) {
    const int vectors = std::min(4, (head_dim - column) / kLanes);
    Floats mix[R][4];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < 4; ++v)
        mix[r][v] = v < vectors ? mul(load(state.mix + r * head_dim + column + v * kLanes), broadcast(shrinks[r])) : zeros();
    const uint32_t* values = block.values + column;
    const auto step = [&](int i, auto count) {
      Words rows[4];
      EAGRE_UNROLL(4)
      for (int v = 0; v < count; ++v) rows[v] = load_words(values + size_t{1} * i * head_dim + v * kLanes);
      EAGRE_UNROLL(4)
      for (int r = 0; r < R; ++r) {
        EAGRE_UNROLL(4)
        for (int v = 0; v < count; ++v) {
          if constexpr (kIsFloat) {
            mix[r][v] = fma(as_floats(rows[v]), broadcast(floats[r][i]), mix[r][v]);
          } else {
            mix[r][v] = dot2(mix[r][v], rows[v], &halves[r][2 * i]);
          }
        }
      }
    };
    if (vectors == 4) {
      for (int i = 0; i < num_steps; ++i) step(i, std::integral_constant<int, 4>());
    } else {
      for (int i = 0; i < num_steps; ++i) step(i, vectors);
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < vectors; ++v) store(state.mix + r * head_dim + column + v * kLanes, mix[r][v]);
  }
}

template <bool kIsFloat, bool kIsCapped>
void attend_some(int count, const Call& call, State state) {
  switch (count) {
    case 1: return attend_block<kIsFloat, kIsCapped, 1>(call, state);
    case 2: return attend_block<kIsFloat, kIsCapped, 2>(call, state);
    case 3: return attend_block<kIsFloat, kIsCapped, 3>(call, state);
    default: return attend_block<kIsFloat, kIsCapped, kMostRows>(call, state);
  }
}

}  // namespace

void attend_rows(const Pages& pages, const Block& block, int num_keys, float softcap, int count,
                 const std::byte* const* queries, const int* hidden, const int* visible, State state) {
  const Call call{block, pages.type == PageType::kInt8, static_cast<int>(pages.head_dim), num_keys, softcap * kLog2E,
                  queries, hidden, visible};
  const bool is_float = pages.type == PageType::kFloat32, is_capped = softcap > 0.0f;
  const auto attend = is_float ? (is_capped ? attend_some<true, true> : attend_some<true, false>)
                               : (is_capped ? attend_some<false, true> : attend_some<false, false>);
  attend(count, call, state);
}

void clear(State s, int64_t count, int64_t head_dim) {
  std::fill_n(s.best, count, kMinusInfinity);
  std::fill_n(s.total, count, 0.0f);
  std::fill_n(s.mix, count * head_dim, 0.0f);
}

void merge(State s, State other, int64_t count, int64_t head_dim) {
  for (int64_t r = 0; r < count; ++r) {
    const float best = std::max(s.best[r], other.best[r]);
    const float shift = best == kMinusInfinity ? 0.0f : best;
    const float mine = std::exp2(s.best[r] - shift), theirs = std::exp2(other.best[r] - shift);
    s.best[r] = best;
    s.total[r] = s.total[r] * mine + other.total[r] * theirs;
    for (int64_t i = r * head_dim; i < (r + 1) * head_dim; i += kLanes) {
      const Floats kept = mul(load(s.mix + i), broadcast(mine));
      store(s.mix + i, fma(load(other.mix + i), broadcast(theirs), kept));
    }
  }
}

State state_at(float* memory, int64_t count) {
  const int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  return {memory, memory + padded, memory + 2 * padded};
}

int64_t state_floats(int64_t count, int64_t head_dim) {
  return 2 * ((count + kLanes - 1) / kLanes * kLanes) + count * head_dim;
}

}  // namespace eagre
