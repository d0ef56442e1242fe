#include "attention/block_products.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "attention/counts.h"
#include "attention/integer_products.h"
#include "attention/tile_products.h"
#include "isa/attention_isa.h"
#include "isa/isa.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;

// How many lines of 64 bytes of the next block are asked for, whenever kTimes two numbers of V vectors are about to be
// multiplied, a word of bfloat16 or two words of float32 each: so many that a few rows ask evenly for all of it, and sooner
// where the present block is not whole.
template <Factors F, int V, int kTimes, bool kIsWhole>
constexpr int kLinesAhead = kTimes * (kWidensInProducts && kIsWhole ? (F == Factors::kFloats ? 2 * V : V) : 4);

// Whether vectors ever multiply pairs of bfloat16 (see `factors_of`); a matrix unit does it by itself.
#if defined(__AVX512BF16__) && !EAGRE_HAS_TILE_REGISTERS
constexpr bool kMultipliesPairs = true;
#else
constexpr bool kMultipliesPairs = false;
#endif

constexpr int kMostRows = 4;  // of one small product, whose sums are kept in registers

// How many vectors of 16 columns such a product has: the fewer rows, the more, so that a sum need not wait for its last
// product. Rows that are left behind others take as many as those.
constexpr int most_vectors(int rows) {
  if (kNumFloatsRegisters >= 32) return 4;
  return rows == 1 ? 4 : rows == 2 ? 2 : 1;
}

// Bytes of a row of queries or weights for each word of the block.
template <Factors F>
constexpr int kLeftBytes = F == Factors::kWidenedPairs ? 8 : 4;

inline Floats broadcast_at(const std::byte* p) {
  float x;
  std::memcpy(&x, p, sizeof x);
  return broadcast(x);
}

// sums[r][v] += the product of `left` row r and a vector of columns, for one word of both: `left` is at the word, which is
// `at` words from the begin of the columns. The first kTogether vectors lie side by side from columns[0] on, the others from
// columns[1] on.
template <Factors F, int kTogether, bool kIsFast, int R, int V>
[[gnu::always_inline]] inline void multiply_word(const std::byte* left, int64_t left_stride,
                                                 const uint32_t* const (&columns)[2], int64_t at, Floats (&sums)[R][V]) {
  static_assert(V <= 2 * kTogether);
  const auto words_of = [&](int v) { return load_words(columns[v / kTogether] + at + v % kTogether * kLanes); };
  if constexpr (F == Factors::kWidenedPairs) {
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) {
      const Words pairs = words_of(v);
      const Floats first = first_halves(pairs);
      EAGRE_UNROLL(8)
      for (int r = 0; r < R; ++r) sums[r][v] = fma(first, broadcast_at(left + r * left_stride), sums[r][v]);
      const Floats second = second_halves(pairs);
      EAGRE_UNROLL(8)
      for (int r = 0; r < R; ++r) sums[r][v] = fma(second, broadcast_at(left + r * left_stride + 4), sums[r][v]);
    }
  } else {
    Words words[V];
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) words[v] = kIsFast ? kept(words_of(v)) : words_of(v);
    EAGRE_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      const std::byte* const other = left + r * left_stride;
      EAGRE_UNROLL(8)
      for (int v = 0; v < V; ++v) {
        if constexpr (F == Factors::kFloats) {
          sums[r][v] = fma(as_floats(words[v]), broadcast_at(other), sums[r][v]);
        } else {
          sums[r][v] = dot2(sums[r][v], words[v], other);
        }
      }
    }
  }
}

// sums[r][v] += the product of `left` row r, for num_words words, and such columns, whose words are `stride` words apart.
template <Factors F, int kTogether, bool kIsWhole, int R, int V>
[[gnu::always_inline]] inline void multiply_beside(const std::byte* left, int64_t left_stride,
                                                   const uint32_t* const (&columns)[2], int64_t stride, int num_words,
                                                   Prefetch& ahead, Floats (&sums)[R][V]) {
  // Two words at once of float32, and where so few products stand beside them that to count words and to ask for memory
  // would take a quarter of the time.
  constexpr int kAtOnce = F == Factors::kFloats || (F == Factors::kWidenedPairs && V <= 2) ? 2 : 1;
  constexpr int kTimes = F == Factors::kFloats ? 1 : kAtOnce;
  const auto multiply_one = [&](int word, auto is_fast) __attribute__((always_inline)) {
    multiply_word<F, kTogether, is_fast()>(left + word * kLeftBytes<F>, left_stride, columns, word * stride, sums);
  };
  // Of all that a few rows need next, in products with four vectors.
  constexpr int kNearLines = F == Factors::kFloats ? 8 : 4;
  prefetch_beside<kLinesAhead<F, V, kTimes, kIsWhole>, kNearLines>(ahead, num_words / kAtOnce, [&](int turn, auto is_fast) __attribute__((always_inline)) {
    EAGRE_UNROLL(2)
    for (int i = 0; i < kAtOnce; ++i) multiply_one(kAtOnce * turn + i, is_fast);
  });
  if (num_words % kAtOnce != 0) multiply_one(num_words - 1, std::true_type());
}

template <Factors F, int kTogether, int R, int V>
[[gnu::always_inline]] inline void multiply(const std::byte* left, int64_t left_stride, const uint32_t* const (&columns)[2],
                                            int64_t stride, int num_words, bool is_whole, Prefetch& ahead,
                                            Floats (&sums)[R][V]) {
  if (kWidensInProducts && is_whole) {
    multiply_beside<F, kTogether, true>(left, left_stride, columns, stride, num_words, ahead, sums);
  } else {
    multiply_beside<F, kTogether, false>(left, left_stride, columns, stride, num_words, ahead, sums);
  }
}

template <Factors F, int R, int V>
void score(const Block& block, int first_vector, const std::byte* queries, int num_words, bool is_whole, float* scores) {
  Floats sums[R][V];
  EAGRE_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) sums[r][v] = zeros();
  }
  // Of a half; a product that reaches into the second one begins at the first key. (There are no more than four vectors.)
  constexpr int kTogether = V > kKeyVectors ? V : std::min(V, 2);
  static_assert(kKeyVectors == 4 && most_vectors(R) % kTogether == 0 || V > most_vectors(R));
  const uint32_t* const columns[2] = {keys_of(block, first_vector), V > 2 ? keys_of(block, first_vector + 2) : nullptr};
  multiply<F, kTogether>(queries, num_words * kLeftBytes<F>, columns, kHalfKeys, num_words, is_whole, block.behind_keys(), sums);
  EAGRE_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) store(scores + r * kBlockKeys + (first_vector + v) * kLanes, sums[r][v]);
  }
}

template <Factors F, int R, int V>
void mix_in(const Block& block, int64_t column, const float* weights, int num_words, const float* shrinks,
            int64_t head_dim, float* mix) {
  constexpr int kHalfWords = F == Factors::kFloats ? kHalfKeys : kHalfKeys / 2;
  Floats sums[R][V];
  EAGRE_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    const Floats shrink = broadcast(shrinks[r]);
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) sums[r][v] = mul(load(mix + r * head_dim + column + v * kLanes), shrink);
  }
  const bool is_whole = num_words == 2 * kHalfWords;
  for (int half = 0; half * kHalfWords < num_words; ++half) {
    const uint32_t* const columns[2] = {values_of(block, half) + column, nullptr};
    const std::byte* const left = reinterpret_cast<const std::byte*>(weights) + half * kHalfWords * kLeftBytes<F>;
    const int count = std::min(kHalfWords, num_words - half * kHalfWords);
    multiply<F, V>(left, kBlockKeys * sizeof(float), columns, head_dim, count, is_whole, block.behind_values(), sums);
  }
  EAGRE_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) store(mix + r * head_dim + column + v * kLanes, sums[r][v]);
  }
}

template <Factors F>
void multiply_keys_of(int head_dim, const Block& block, const std::byte* queries, int num_rows, int num_vectors,
                      float* scores) {
  const int num_words = F == Factors::kFloats ? head_dim : head_dim / 2;
  for_each_part<kMostRows, most_vectors, kNumFloatsRegisters >= 32>(num_rows, num_vectors, [&](int row, auto rows, int vector, auto vectors) {
    score<F, rows(), vectors()>(block, vector, queries + int64_t{kLeftBytes<F>} * row * num_words, num_words,
                                num_vectors == kKeyVectors, scores + row * kBlockKeys);
  });
}

template <Factors F>
void multiply_values_of(int head_dim, const Block& block, const float* weights, int num_rows, int num_keys,
                        const float* shrinks, float* mix) {
  const int num_words = F == Factors::kFloats ? num_keys : (num_keys + 1) / 2;
  for_each_part<kMostRows, most_vectors, kNumFloatsRegisters >= 32>(num_rows, head_dim / kLanes, [&](int row, auto rows, int vector, auto vectors) {
    mix_in<F, rows(), vectors()>(block, vector * kLanes, weights + row * kBlockKeys, num_words, shrinks + row, head_dim,
                                 mix + int64_t{1} * row * head_dim);
  });
}

// Calls body with a constant that is the kind of factors.
template <class Body>
void with_factors(Factors factors, const Body& body) {
  switch (factors) {
    case Factors::kFloats: return body(std::integral_constant<Factors, Factors::kFloats>());
    case Factors::kPairs:
      if constexpr (kMultipliesPairs) body(std::integral_constant<Factors, Factors::kPairs>());
      return;
    case Factors::kWidenedPairs:
      if constexpr (kWidensInProducts) body(std::integral_constant<Factors, Factors::kWidenedPairs>());
      return;
    case Factors::kBytes:
    case Factors::kInt16Pairs: return;
  }
}

}  // namespace

void multiply_keys(ProductKind kind, const Block& block, const std::byte* queries, int num_rows, int num_vectors,
                   const float* addends, float* scores) {
#if EAGRE_HAS_TILE_REGISTERS
  if (kind.factors == Factors::kPairs) {
    return in_tiles::multiply_keys(kind.head_dim, block, queries, num_rows, num_vectors, scores);
  }
#endif
  if constexpr (kMultipliesIntegers) {
    if (is_of_integers(kind.factors)) {
      return in_integers::multiply_keys(kind, block, queries, num_rows, num_vectors, addends, scores);
    }
  }
  with_factors(kind.factors, [&](auto factors) {
    multiply_keys_of<factors()>(kind.head_dim, block, queries, num_rows, num_vectors, scores);
  });
}

void multiply_values(ProductKind kind, const Block& block, const float* weights, int num_rows, int num_keys,
                     const float* shrinks, const float* steps, float* mix) {
#if EAGRE_HAS_TILE_REGISTERS
  if (kind.factors == Factors::kPairs) {
    return in_tiles::multiply_values(kind.head_dim, block, weights, num_rows, num_keys, shrinks, mix);
  }
#endif
  if constexpr (kMultipliesIntegers) {
    if (is_of_integers(kind.factors)) return in_integers::multiply_values(kind, block, weights, num_rows, num_keys, shrinks, steps, mix);
  }
  with_factors(kind.factors, [&](auto factors) {
    multiply_values_of<factors()>(kind.head_dim, block, weights, num_rows, num_keys, shrinks, mix);
  });
}

}  // namespace eagre
