#include "attention/integer_products.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attention/counts.h"
#include "isa/attention_isa.h"
#include "isa/isa.h"

namespace eagre::in_integers {

#if EAGRE_MULTIPLIES_INTEGERS

namespace {

constexpr int kHalfPairs = kHalfKeys / 2;
constexpr int kHalfRegisters = kHalfKeys / kPairLanes;
constexpr int kMostRows = kNumFloatsRegisters >= 32 ? 4 : 6;  // of one small product, whose sums are kept in registers

// How many registers of columns such a product has: with few rows as many as let no sum wait for its last product, and
// with more rows as many as there is room for.
constexpr int most_columns(int rows) {
  if (kNumFloatsRegisters >= 32) return 4;
  return rows <= 2 ? 4 : 2;
}

// Words that are multiplied between two requests for parts of the next block; each request is for as many lines of 64 bytes
// as these words take.
template <class Word>
constexpr int kWordsAtOnce = 16 / sizeof(Word);

// sums[r][v] += the products of `left` row r, some pairs of 16 bits, and a register of columns, whose pairs are `stride`
// pairs apart. The first kTogether registers lie side by side from columns[0] on, the others from columns[1] on. A pair of
// int8 is a Word of 16 bits, one of 16 bits each a Word of 32.
template <int kTogether, class Word, int R, int V>
[[gnu::always_inline]] inline void multiply(const std::byte* left, int64_t left_stride, const Word* const (&columns)[2],
                                            int64_t stride, int num_words, Prefetch& ahead, PairLanes (&sums)[R][V]) {
  static_assert(V <= 2 * kTogether);
  const auto multiply_word = [&](int word, auto is_fast) __attribute__((always_inline)) {
    PairLanes pairs[V];
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) {
      pairs[v] = load_pairs(columns[v / kTogether] + word * stride + v % kTogether * kPairLanes);
      if (is_fast()) pairs[v] = kept(pairs[v]);
    }
    EAGRE_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      const PairLanes own = broadcast_pair(left + r * left_stride + 4 * word);
      EAGRE_UNROLL(8)
      for (int v = 0; v < V; ++v) {
        sums[r][v] = add_products(sums[r][v], pairs[v], own);
        settle(sums[r][v]);
      }
    }
  };
  constexpr int kAtOnce = kWordsAtOnce<Word>;
  prefetch_beside<V * kPairLanes / 4>(ahead, num_words / kAtOnce, [&](int turn, auto is_fast) __attribute__((always_inline)) {
    EAGRE_UNROLL(8)
    for (int i = 0; i < kAtOnce; ++i) multiply_word(kAtOnce * turn + i, is_fast);
  });
  for (int word = num_words / kAtOnce * kAtOnce; word < num_words; ++word) multiply_word(word, std::true_type());
}

template <int R, int V>
[[gnu::always_inline]] inline void clear(PairLanes (&sums)[R][V]) {
  EAGRE_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) sums[r][v] = no_sums();
  }
}

inline float float_at(const std::byte* p) {
  float x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

template <class Word, int R, int V>
void score(const Block& block, int column, const std::byte* queries, int num_words, float* scores) {
  const int64_t stride = bytes_of_integer_query(2 * num_words);
  const int half = column / kHalfRegisters;
  const Word* const columns[2] = {keys_of<Word>(block, 2 * half) + column % kHalfRegisters * kPairLanes,
                                  keys_of<Word>(block, 2)};
  PairLanes sums[R][V];
  clear(sums);
  multiply<kHalfRegisters>(queries, stride, columns, kHalfKeys, num_words, block.behind_keys(), sums);
  EAGRE_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    const float scale = float_at(queries + r * stride + 4 * num_words);
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) {
      const int key = (column + v) * kPairLanes;
      store_scaled(sums[r][v], scale, block.key_scales + key, scores + r * kBlockKeys + key);
    }
  }
}

template <class Word, int R, int V>
void mix_in(const Block& block, int64_t column, const float* weights, int num_words, const float* shrinks,
            const float* steps, int64_t head_dim, float* mix) {
  PairLanes sums[R][V];
  clear(sums);
  for (int half = 0; half * kHalfPairs < num_words; ++half) {
    const std::byte* const left = reinterpret_cast<const std::byte*>(weights) + 4 * half * kHalfPairs;
    const int count = std::min(kHalfPairs, num_words - half * kHalfPairs);
    const Word* const columns[2] = {values_of<Word>(block, half) + column, nullptr};
    multiply<V>(left, kBlockKeys * sizeof(float), columns, head_dim, count, block.behind_values(), sums);
  }
  EAGRE_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) {
      shrink_and_add(sums[r][v], steps[r], shrinks[r], mix + r * head_dim + column + v * kPairLanes);
    }
  }
}

template <class Word>
void multiply_keys_of(int head_dim, const Block& block, const std::byte* queries, int num_rows, int num_vectors,
                      float* scores) {
  const int num_words = head_dim / 2;
  // A product that reaches into the second half begins at the first key.
  static_assert(kHalfRegisters % most_columns(1) == 0 || most_columns(1) == 2 * kHalfRegisters);
  static_assert(kHalfRegisters % most_columns(kMostRows) == 0 || most_columns(kMostRows) == 2 * kHalfRegisters);
  for_each_part<kMostRows, most_columns, false>(num_rows, num_vectors * 16 / kPairLanes, [&](int row, auto rows, int column, auto columns) {
    score<Word, rows(), columns()>(block, column, queries + row * bytes_of_integer_query(head_dim), num_words,
                                   scores + row * kBlockKeys);
  });
}

template <class Word>
void multiply_values_of(int head_dim, const Block& block, const float* weights, int num_rows, int num_keys,
                        const float* shrinks, const float* steps, float* mix) {
  for_each_part<kMostRows, most_columns, false>(num_rows, head_dim / kPairLanes, [&](int row, auto rows, int column, auto columns) {
    mix_in<Word, rows(), columns()>(block, column * kPairLanes, weights + row * kBlockKeys, (num_keys + 1) / 2,
                                    shrinks + row, steps + row, head_dim, mix + int64_t{1} * row * head_dim);
  });
}

// Calls body with a word of the block.
template <class Body>
void with_words(Factors factors, const Body& body) {
  factors == Factors::kBytePairs ? body(uint16_t{}) : body(uint32_t{});
}

}  // namespace

void multiply_keys(ProductKind kind, const Block& block, const std::byte* queries, int num_rows, int num_vectors,
                   float* scores) {
  with_words(kind.factors, [&](auto word) {
    multiply_keys_of<decltype(word)>(kind.head_dim, block, queries, num_rows, num_vectors, scores);
  });
}

void multiply_values(ProductKind kind, const Block& block, const float* weights, int num_rows, int num_keys,
                     const float* shrinks, const float* steps, float* mix) {
  with_words(kind.factors, [&](auto word) {
    multiply_values_of<decltype(word)>(kind.head_dim, block, weights, num_rows, num_keys, shrinks, steps, mix);
  });
}

#endif

}  // namespace eagre::in_integers
