#include "attention/block_products.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "isa/isa.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;
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

// sums[r][v] += the product of `left` row r, of num_words words, and vector v of `right`, whose rows of words are
// right_stride words apart.
template <bool kIsFloat, int R, int V>
inline void multiply(const std::byte* left, int64_t left_stride, const uint32_t* right, int64_t right_stride,
                     int num_words, Floats (&sums)[R][V]) {
  for (int word = 0; word < num_words; ++word, left += 4, right += right_stride) {
    Words columns[V];
    EAGRE_UNROLL(4)
    for (int v = 0; v < V; ++v) columns[v] = load_words(right + v * kLanes);
    EAGRE_UNROLL(4)
    for (int r = 0; r < R; ++r) {
      EAGRE_UNROLL(4)
      for (int v = 0; v < V; ++v) sums[r][v] = add_product<kIsFloat>(sums[r][v], columns[v], left + r * left_stride);
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
  const int64_t first = first_vector * kLanes;
  multiply<kIsFloat, R, V>(queries, num_words * 4, block.keys + first, kBlockKeys, num_words, sums);
  EAGRE_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    EAGRE_UNROLL(4)
    for (int v = 0; v < V; ++v) store(scores + r * kBlockKeys + first + v * kLanes, sums[r][v]);
  }
}

template <bool kIsFloat, int R, int V>
void mix_in(const Block& block, int64_t column, const float* weights, int num_words, const float* shrinks,
            int64_t head_dim, float* mix) {
  Floats sums[R][V];
  EAGRE_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    const Floats shrink = broadcast(shrinks[r]);
    EAGRE_UNROLL(4)
    for (int v = 0; v < V; ++v) sums[r][v] = mul(load(mix + r * head_dim + column + v * kLanes), shrink);
  }
  multiply<kIsFloat, R, V>(reinterpret_cast<const std::byte*>(weights), kBlockKeys * sizeof(float),
                           block.values + column, head_dim, num_words, sums);
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
  if (!kHasBf16Dot || kind.is_float) {
    multiply_keys_of<true>(kind.head_dim, block, queries, num_rows, num_vectors, scores);
  } else if constexpr (kHasBf16Dot) {
    multiply_keys_of<false>(kind.head_dim, block, queries, num_rows, num_vectors, scores);
  }
}

void multiply_values(ProductKind kind, const Block& block, const float* weights, int num_rows, int num_keys,
                     const float* shrinks, float* mix) {
  if (!kHasBf16Dot || kind.is_float) {
    multiply_values_of<true>(kind.head_dim, block, weights, num_rows, num_keys, shrinks, mix);
  } else if constexpr (kHasBf16Dot) {
    multiply_values_of<false>(kind.head_dim, block, weights, num_rows, num_keys, shrinks, mix);
  }
}

}  // namespace eagre
