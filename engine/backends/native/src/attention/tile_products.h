// The two products of attention, see block_products.h, of pairs of bfloat16 in the matrix unit.
#pragma once

#include "isa/tile_registers.h"

#if EAGRE_HAS_TILE_REGISTERS

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "isa/isa.h"
#include "pages/key_block.h"

namespace eagre::in_tiles {

constexpr int kLanes = 16;
constexpr int kTileWords = kMostTileBytes / 4;  // of a row: so many features or keys are multiplied at once, twice
static_assert(kHalfKeys == 2 * kTileWords);

// Four registers hold results. The first two of the others have all words, the last two those that are left of a head
// whose size is no multiple of 32 features.
constexpr int kResults = 4, kLeft = 4, kRight = 5, kLastLeft = 6, kLastRight = 7;

// The shapes for so many rows, up to 16, and heads that leave so many words.
constexpr TileShapes shapes_for(int rows, int last) {
  const TileShape result{rows, kMostTileBytes}, none{0, 0};
  return TileShapes({result, result, result, result, result, {kTileWords, kMostTileBytes},
                     last > 0 ? TileShape{rows, 4 * last} : none, last > 0 ? TileShape{last, kMostTileBytes} : none});
}

template <size_t... kRows>
constexpr std::array<TileShapes, sizeof...(kRows)> all_shapes(int last, std::index_sequence<kRows...>) {
  return {shapes_for(static_cast<int>(kRows) + 1, last)...};
}

inline void configure(int num_rows, int head_dim) {
  constexpr int kLast = kTileWords / 2;  // because heads are of a multiple of 16 features
  static constexpr auto kRows = std::make_index_sequence<kMostTileRows>();
  static constexpr auto kWhole = all_shapes(0, kRows), kWithLast = all_shapes(kLast, kRows);
  configure_tiles((head_dim % (2 * kTileWords) == 0 ? kWhole : kWithLast)[std::min(num_rows, kMostTileRows) - 1]);
}

// Calls body(constant) for the constants from 0 to count - 1, at most kResults of them.
template <class Body>
inline void for_each_result(int count, const Body& body) {
  if (count > 0) body(std::integral_constant<int, 0>());
  if (count > 1) body(std::integral_constant<int, 1>());
  if (count > 2) body(std::integral_constant<int, 2>());
  if (count > 3) body(std::integral_constant<int, 3>());
}

constexpr int kLinesAhead = 4;  // of each stretch, with each load of a register: as much as that load reads

// The first `count` results += `left` times 16 columns each of what right(result) points to. Strides are in bytes.
template <int kA, int kB, class Right>
inline void add_products(int count, const std::byte* left, size_t left_stride, const Right& right, size_t right_stride,
                         Prefetch& ahead) {
  tile_load<kA>(left, left_stride);
  for_each_result(count, [&](auto result) {
    tile_load<kB>(right(result()), right_stride);
    ahead.prefetch_each(kLinesAhead);
    tile_dot_bf16<result(), kA, kB>();
  });
}

// Of queries and scores, as many rows are read and written as a multiple of 16 has, where there are more than 16.
inline void multiply_keys(int head_dim, const Block& block, const std::byte* queries, int num_rows, int num_vectors,
                          float* scores) {
  configure(num_rows, head_dim);
  const int num_words = head_dim / 2, whole = num_words / kTileWords * kTileWords;
  const size_t query_stride = 4 * num_words, key_stride = kHalfKeys * 4, score_stride = kBlockKeys * 4;
  for (int row = 0; row < num_rows; row += kMostTileRows) {
    const std::byte* left = queries + row * query_stride;
    for_each_result(num_vectors, [&](auto v) { tile_zero<v()>(); });
    const auto keys_from = [&](int word) { return [=, &block](int v) { return keys_of(block, v) + word * kHalfKeys; }; };
    for (int word = 0; word < whole; word += kTileWords) {
      add_products<kLeft, kRight>(num_vectors, left + 4 * word, query_stride, keys_from(word), key_stride,
                                  block.prefetch);
    }
    if (whole < num_words) {
      add_products<kLastLeft, kLastRight>(num_vectors, left + 4 * whole, query_stride, keys_from(whole), key_stride,
                                          block.prefetch);
    }
    float* to = scores + row * kBlockKeys;
    for_each_result(num_vectors, [&](auto v) { tile_store<v()>(to + v() * kLanes, score_stride); });
  }
}

// So it is with weights and the mix. The weights of as many keys as a multiple of 32 has are read; those behind num_keys
// are 0.
inline void multiply_values(int head_dim, const Block& block, const float* weights, int num_rows, int num_keys,
                            const float* shrinks, float* mix) {
  configure(num_rows, head_dim);
  const size_t stride = 4 * head_dim;
  for (int row = 0; row < num_rows; ++row) {
    if (shrinks[row] == 1.0f) continue;
    float* to = mix + row * head_dim;
    for (int i = 0; i < head_dim; i += kLanes) store(to + i, mul(load(to + i), broadcast(shrinks[row])));
  }
  for (int column = 0; column < head_dim; column += kResults * kLanes) {
    const int count = std::min(kResults, (head_dim - column) / kLanes);
    for (int row = 0; row < num_rows; row += kMostTileRows) {
      float* to = mix + row * head_dim + column;
      for_each_result(count, [&](auto v) { tile_load<v()>(to + v() * kLanes, stride); });
      for (int half = 0; half * kHalfKeys < num_keys; ++half) {
        const float* left = weights + row * kBlockKeys + half * kHalfKeys / 2;
        const auto values = [&](int v) { return values_of(block, half) + column + v * kLanes; };
        add_products<kLeft, kRight>(count, reinterpret_cast<const std::byte*>(left), kBlockKeys * 4, values, stride,
                                    block.prefetch);
      }
      for_each_result(count, [&](auto v) { tile_store<v()>(to + v() * kLanes, stride); });
    }
  }
}

}  // namespace eagre::in_tiles

#endif  // EAGRE_HAS_TILE_REGISTERS
