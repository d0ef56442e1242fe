#include "attention/block_products.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "attention/tile_products.h"
#include "isa/attention_isa.h"
#include "isa/isa.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;
// Lines of 64 bytes of the next block that are asked for whenever two numbers of every column are about to be
// multiplied: a word of bfloat16, or two words of float32.
constexpr int kLinesAtOnce = 4;
constexpr int kMostRows = 4;  // of one small product, whose sums are kept in registers
constexpr int kMostVectors = kNumFloatsRegisters >= 32 ? 4 : 1;  // of 16 columns, of the same

// sum + word * other, where a word is a float32 or a pair of bfloat16 in each lane, and `other` the same in all lanes.
template <bool kIsFloat>
inline Floats add_product(Floats sum, Words word, const std::byte* other) {
  if constexpr (kIsFloat) {
    float factor;
    std::memcpy(&factor, other, sizeof factor);
    return fma(as_floats(word), broadcast(factor), sum);
  } else {
    return dot2(sum, word, other);
  }
}

// sums[r][v] += the product of `left` row r, of num_words words, and columns[v], whose words are `stride` words apart.
template <bool kIsFloat, int R, int V>
inline void multiply(const std::byte* left, int64_t left_stride, const uint32_t* const (&columns)[V], int64_t stride,
                     int num_words, LookAhead& ahead, Floats (&sums)[R][V]) {
  for (int64_t word = 0; word < num_words; ++word) {
    if (!kIsFloat || word % 2 == 0) ahead.ask<kLinesAtOnce>();
    Words words[V];
    EAGRE_UNROLL(4)
    for (int v = 0; v < V; ++v) words[v] = load_words(columns[v] + word * stride);
    EAGRE_UNROLL(4)
    for (int r = 0; r < R; ++r) {
      const std::byte* const other = left + r * left_stride + word * 4;
      EAGRE_UNROLL(4)
      for (int v = 0; v < V; ++v) sums[r][v] = add_product<kIsFloat>(sums[r][v], words[v], other);
    }
  }
}

template <bool kIsFloat, int R, int V>
void score(const Block& block, int first_vector, const std::byte* queries, int num_words, float* scores) {
  Floats sums[R][V];
  EAGRE_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    EAGRE_UNROLL(4)
    for (int v = 0; v < V; ++v) sums[r][v] = zeros();
  }
  const uint32_t* columns[V];
  for (int v = 0; v < V; ++v) columns[v] = keys_of(block, first_vector + v);
  multiply<kIsFloat, R, V>(queries, num_words * 4, columns, kHalfKeys, num_words, block.look_ahead, sums);
  EAGRE_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    EAGRE_UNROLL(4)
    for (int v = 0; v < V; ++v) store(scores + r * kBlockKeys + (first_vector + v) * kLanes, sums[r][v]);
  }
}

template <bool kIsFloat, int R, int V>
void mix_in(const Block& block, int64_t column, const float* weights, int num_words, const float* shrinks,
            int64_t head_dim, float* mix) {
  constexpr int kHalfWords = kIsFloat ? kHalfKeys : kHalfKeys / 2;
  Floats sums[R][V];
  EAGRE_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    const Floats shrink = broadcast(shrinks[r]);
    EAGRE_UNROLL(4)
    for (int v = 0; v < V; ++v) sums[r][v] = mul(load(mix + r * head_dim + column + v * kLanes), shrink);
  }
  for (int half = 0; half * kHalfWords < num_words; ++half) {
    const uint32_t* columns[V];
    for (int v = 0; v < V; ++v) columns[v] = block.values[half] + column + v * kLanes;
    const std::byte* const left = reinterpret_cast<const std::byte*>(weights) + half * kHalfWords * 4;
    const int count = std::min(kHalfWords, num_words - half * kHalfWords);
    multiply<kIsFloat, R, V>(left, kBlockKeys * sizeof(float), columns, head_dim, count, block.look_ahead, sums);
  }
  EAGRE_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    EAGRE_UNROLL(4)
    for (int v = 0; v < V; ++v) store(mix + r * head_dim + column + v * kLanes, sums[r][v]);
  }
}

// Calls body(constant of the count) for a count from 1 to kMost.
template <int kMost, class Body>
inline void with_count(int count, const Body& body) {
  if constexpr (kMost == 1) {
    body(std::integral_constant<int, 1>());
  } else if (count >= kMost) {
    body(std::integral_constant<int, kMost>());
  } else {
    with_count<kMost - 1>(count, body);
  }
}

// Calls body(first row, rows, first vector, vectors) for all small products; rows and vectors are constants.
template <class Body>
inline void for_each_part(int num_rows, int num_vectors, const Body& body) {
  for (int vector = 0; vector < num_vectors; vector += kMostVectors) {
    with_count<kMostVectors>(num_vectors - vector, [&](auto vectors) {
      for (int row = 0; row < num_rows; row += kMostRows) {
        with_count<kMostRows>(num_rows - row, [&](auto rows) { body(row, rows, vector, vectors); });
      }
    });
  }
}

template <bool kIsFloat>
void multiply_keys_of(int head_dim, const Block& block, const std::byte* queries, int num_rows, int num_vectors,
                      float* scores) {
  const int num_words = kIsFloat ? head_dim : head_dim / 2;
  for_each_part(num_rows, num_vectors, [&](int row, auto rows, int vector, auto vectors) {
    score<kIsFloat, rows(), vectors()>(block, vector, queries + int64_t{4} * row * num_words, num_words,
                                       scores + row * kBlockKeys);
  });
}

template <bool kIsFloat>
void multiply_values_of(int head_dim, const Block& block, const float* weights, int num_rows, int num_keys,
                        const float* shrinks, float* mix) {
  const int num_words = kIsFloat ? num_keys : (num_keys + 1) / 2;
  for_each_part(num_rows, head_dim / kLanes, [&](int row, auto rows, int vector, auto vectors) {
    mix_in<kIsFloat, rows(), vectors()>(block, vector * kLanes, weights + row * kBlockKeys, num_words, shrinks + row,
                                        head_dim, mix + int64_t{1} * row * head_dim);
  });
}

}  // namespace

void multiply_keys(ProductKind kind, const Block& block, const std::byte* queries, int num_rows, int num_vectors,
                   float* scores) {
  if (kind.is_float) return multiply_keys_of<true>(kind.head_dim, block, queries, num_rows, num_vectors, scores);
#if EAGRE_HAS_TILE_REGISTERS
  in_tiles::multiply_keys(kind.head_dim, block, queries, num_rows, num_vectors, scores);
#else
  multiply_keys_of<false>(kind.head_dim, block, queries, num_rows, num_vectors, scores);
#endif
}

void multiply_values(ProductKind kind, const Block& block, const float* weights, int num_rows, int num_keys,
                     const float* shrinks, float* mix) {
  if (kind.is_float) return multiply_values_of<true>(kind.head_dim, block, weights, num_rows, num_keys, shrinks, mix);
#if EAGRE_HAS_TILE_REGISTERS
  in_tiles::multiply_values(kind.head_dim, block, weights, num_rows, num_keys, shrinks, mix);
#else
  multiply_values_of<false>(kind.head_dim, block, weights, num_rows, num_keys, shrinks, mix);
#endif
}

}  // namespace eagre
