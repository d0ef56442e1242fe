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

constexpr int kHalfRegisters = kHalfKeys / kPairLanes;
constexpr int kMostRows = kNumFloatsRegisters >= 32 ? 4 : 6;  // of one small product, whose sums are kept in registers

// How many registers of columns such a product has: with few rows as many as let no sum wait for its last product, and
// with more rows as many as there is room for.
constexpr int most_columns(int rows) {
  if (kNumFloatsRegisters >= 32) return 4;
  return rows <= 2 ? 4 : 2;
}

// Words of the block that are multiplied between two requests for parts of the next one; each request is for as many lines
// of 64 bytes as these words take.
constexpr int kWordsAtOnce = 4;

// How a register of the block's words is loaded, and multiplied with a word of queries or weights. Where that has several
// parts, each meets a part of each word of the block.
struct PairProducts {  // both have pairs of integers of 16 bits
  static constexpr int kParts = 1;
  static constexpr int kNumbers = 2;  // of a word
  template <int>
  static PairLanes load(const uint32_t* words) { return load_pairs(words); }
  static PairLanes add(PairLanes sum, const PairLanes& words, const PairLanes& left) { return add_products(sum, words, left); }
};
struct KeyByteProducts {  // bytes without a sign, and queries of int8
  static constexpr int kParts = kByteParts;
  static constexpr int kNumbers = 4;
  template <int kPart>
  static PairLanes load(const uint32_t* words) { return load_bytes_without_sign<kPart>(words); }
  static PairLanes add(PairLanes sum, const PairLanes& words, const PairLanes& left) { return add_byte_products(sum, words, left); }
};
struct ValueByteProducts {  // int8, and weights of bytes without a sign
  static constexpr int kParts = kByteParts;
  static constexpr int kNumbers = 4;
  template <int kPart>
  static PairLanes load(const uint32_t* words) { return load_bytes_with_sign<kPart>(words); }
  static PairLanes add(PairLanes sum, const PairLanes& words, const PairLanes& left) { return add_byte_products(sum, left, words); }
};

// sums[r][v] += the products of a part of a word: the one at `left` of row r, and of each of V registers of columns those at
// `columns`, of which the first kTogether lie side by side from columns[0] on, the others from columns[1] on.
template <class Products, int kPart, int kTogether, bool kIsFast, int R, int V>
[[gnu::always_inline]] inline void multiply_part(const std::byte* left, int64_t left_stride,
                                                 const uint32_t* const (&columns)[2], int64_t at, PairLanes (&sums)[R][V]) {
  PairLanes words[V];
  EAGRE_UNROLL(8)
  for (int v = 0; v < V; ++v) {
    words[v] = Products::template load<kPart>(columns[v / kTogether] + at + v % kTogether * kPairLanes);
    if (kIsFast) words[v] = kept(words[v]);
  }
  EAGRE_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    const PairLanes own = broadcast_pair(left + r * left_stride + 4 * kPart);
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) {
      sums[r][v] = Products::add(sums[r][v], words[v], own);
      settle(sums[r][v]);
    }
  }
}

// The same of all parts of a word.
template <class Products, int kTogether, bool kIsFast, int R, int V>
[[gnu::always_inline]] inline void multiply_word(const std::byte* left, int64_t left_stride,
                                                 const uint32_t* const (&columns)[2], int64_t at, PairLanes (&sums)[R][V]) {
  static_assert(Products::kParts <= 2);
  multiply_part<Products, 0, kTogether, kIsFast>(left, left_stride, columns, at, sums);
  if constexpr (Products::kParts == 2) {
    multiply_part<Products, 1, kTogether, kIsFast>(left, left_stride, columns, at, sums);
  }
}

// The same of some words, which of columns are `stride` words apart.
template <class Products, int kTogether, int R, int V>
[[gnu::always_inline]] inline void multiply(const std::byte* left, int64_t left_stride, const uint32_t* const (&columns)[2],
                                            int64_t stride, int num_words, Prefetch& ahead, PairLanes (&sums)[R][V]) {
  static_assert(V <= 2 * kTogether);
  constexpr int kLeftBytes = 4 * Products::kParts;
  const auto multiply_one = [&](int word, auto is_fast) __attribute__((always_inline)) {
    multiply_word<Products, kTogether, is_fast()>(left + kLeftBytes * word, left_stride, columns, word * stride, sums);
  };
  constexpr int kLines = V * kPairLanes * kWordsAtOnce / 16;
  prefetch_beside<kLines>(ahead, num_words / kWordsAtOnce, [&](int turn, auto is_fast) __attribute__((always_inline)) {
    EAGRE_UNROLL(4)
    for (int i = 0; i < kWordsAtOnce; ++i) multiply_one(kWordsAtOnce * turn + i, is_fast);
  });
  for (int word = num_words / kWordsAtOnce * kWordsAtOnce; word < num_words; ++word) multiply_one(word, std::true_type());
}

template <class Number>
inline Number number_at(const std::byte* p) {
  Number x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

template <class Products, int R, int V>
void score(const Block& block, int column, const std::byte* queries, int head_dim, const float* addends, float* scores) {
  constexpr bool kIsBytes = Products::kNumbers == 4;
  const int num_words = head_dim / Products::kNumbers, end = 4 * Products::kParts * num_words;  // bytes before the scale
  const int64_t stride = kIsBytes ? bytes_of_byte_query(head_dim) : bytes_of_int16_query(head_dim);
  const int half = column / kHalfRegisters;
  const uint32_t* const columns[2] = {keys_of(block, 2 * half) + column % kHalfRegisters * kPairLanes, keys_of(block, 2)};
  PairLanes sums[R][V];
  EAGRE_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) {
      if constexpr (kIsBytes) {
        sums[r][v] = broadcast_sum(number_at<int32_t>(queries + r * stride + end + sizeof(float)));
      } else {
        sums[r][v] = no_sums();
      }
    }
  }
  multiply<Products, kHalfRegisters>(queries, stride, columns, kHalfKeys, num_words, block.behind_keys(), sums);
  EAGRE_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    const float scale = number_at<float>(queries + r * stride + end);
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) {
      const int key = (column + v) * kPairLanes;
      if constexpr (kIsBytes) {
        store_scaled(sums[r][v], scale, block.key_scales + key, addends + key, scores + r * kBlockKeys + key);
      } else {
        store_scaled(sums[r][v], scale, block.key_scales + key, scores + r * kBlockKeys + key);
      }
    }
  }
}

template <class Products, int R, int V>
void mix_in(const Block& block, int64_t column, const float* weights, int num_words, const float* shrinks,
            const float* steps, int64_t head_dim, float* mix) {
  constexpr int kHalfWords = kHalfKeys / Products::kNumbers;
  PairLanes sums[R][V];
  EAGRE_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) sums[r][v] = no_sums();
  }
  for (int half = 0; half * kHalfWords < num_words; ++half) {
    const std::byte* const left = reinterpret_cast<const std::byte*>(weights) + 4 * Products::kParts * half * kHalfWords;
    const int count = std::min(kHalfWords, num_words - half * kHalfWords);
    const uint32_t* const columns[2] = {values_of(block, half) + column, nullptr};
    multiply<Products, V>(left, kBlockKeys * sizeof(float), columns, head_dim, count, block.behind_values(), sums);
  }
  EAGRE_UNROLL(8)
  for (int r = 0; r < R; ++r) {
    EAGRE_UNROLL(8)
    for (int v = 0; v < V; ++v) {
      shrink_and_add(sums[r][v], steps[r], shrinks[r], mix + r * head_dim + column + v * kPairLanes);
    }
  }
}

template <class Products>
void multiply_keys_of(ProductKind kind, const Block& block, const std::byte* queries, int64_t stride, int num_rows,
                      int num_vectors, const float* addends, float* scores) {
  // A product that reaches into the second half begins at the first key.
  static_assert(kHalfRegisters % most_columns(1) == 0 || most_columns(1) == 2 * kHalfRegisters);
  static_assert(kHalfRegisters % most_columns(kMostRows) == 0 || most_columns(kMostRows) == 2 * kHalfRegisters);
  for_each_part<kMostRows, most_columns, false>(num_rows, num_vectors * 16 / kPairLanes, [&](int row, auto rows, int column, auto columns) {
    score<Products, rows(), columns()>(block, column, queries + row * stride, kind.head_dim, addends, scores + row * kBlockKeys);
  });
}

template <class Products>
void multiply_values_of(ProductKind kind, const Block& block, const float* weights, int num_rows, int num_keys,
                        const float* shrinks, const float* steps, float* mix) {
  const int head_dim = kind.head_dim, num_words = (num_keys + Products::kNumbers - 1) / Products::kNumbers;
  for_each_part<kMostRows, most_columns, false>(num_rows, head_dim / kPairLanes, [&](int row, auto rows, int column, auto columns) {
    mix_in<Products, rows(), columns()>(block, column * kPairLanes, weights + row * kBlockKeys, num_words, shrinks + row,
                                        steps + row, head_dim, mix + int64_t{1} * row * head_dim);
  });
}

}  // namespace

void multiply_keys(ProductKind kind, const Block& block, const std::byte* queries, int num_rows, int num_vectors,
                   const float* addends, float* scores) {
  if (kind.factors == Factors::kBytes) {
    const int64_t stride = bytes_of_byte_query(kind.head_dim);
    multiply_keys_of<KeyByteProducts>(kind, block, queries, stride, num_rows, num_vectors, addends, scores);
  } else {
    const int64_t stride = bytes_of_int16_query(kind.head_dim);
    multiply_keys_of<PairProducts>(kind, block, queries, stride, num_rows, num_vectors, addends, scores);
  }
}

void multiply_values(ProductKind kind, const Block& block, const float* weights, int num_rows, int num_keys,
                     const float* shrinks, const float* steps, float* mix) {
  if (kind.factors == Factors::kBytes) {
    multiply_values_of<ValueByteProducts>(kind, block, weights, num_rows, num_keys, shrinks, steps, mix);
  } else {
    multiply_values_of<PairProducts>(kind, block, weights, num_rows, num_keys, shrinks, steps, mix);
  }
}

#endif

}  // namespace eagre::in_integers
