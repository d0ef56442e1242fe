#include "pages/packed_pages.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "isa/attention_isa.h"
#include "isa/isa.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;

// Puts numbers `stride` numbers from each other, kRun of them together.
template <int kRun, class Number>
void scatter(const Number* from, int64_t count, int64_t stride, Number* to) {
  for (int64_t i = 0; i < count; i += kRun, to += stride) std::memcpy(to, from + i, kRun * sizeof(Number));
}

template <class Number>
void write_numbers(int part, int64_t token, int64_t d, const Number* x, Number* to) {
  constexpr int kNumbers = sizeof(uint32_t) / sizeof(Number);  // of a word
  if (part == 0) return scatter<kNumbers>(x, d, kNumbers * kHalfKeys, to + kNumbers * token);
  scatter<1>(x, d, kNumbers, to + token / kNumbers * kNumbers * d + token % kNumbers);
}

// bfloat16, which are exact, of rows of words of four bytes: a row of pairs of the first two, and then one of the last two.
// Of the highest bytes `wrap` is subtracted, and `zero` of all.
void widen_bytes(const uint8_t* from, int64_t num_rows, int64_t row, float wrap, float zero, uint32_t* to) {
  const auto number = [&](const Ints& byte) {
    const Floats x = to_floats(byte);
    return sub(x, choose(at_least(x, broadcast(kByteZero)), broadcast(wrap + zero), broadcast(zero)));
  };
  for (int64_t i = 0; i < num_rows; ++i, from += 4 * row, to += 2 * row) {
    for (int64_t j = 0; j < row; j += kLanes) {
      const Words words = load_words(from + 4 * j);
      store_words(to + j, bf16_pairs(number(byte_of<0>(words)), number(byte_of<1>(words))));
      store_words(to + row + j, bf16_pairs(number(byte_of<2>(words)), number(byte_of<3>(words))));
    }
  }
}

// float32 of rows of pairs: a row of the first ones, and then one of the second ones.
void widen_pairs(const uint32_t* pairs, int64_t num_rows, int64_t row, float* to) {
  for (int64_t i = 0; i < num_rows; ++i, pairs += row, to += 2 * row) {
    for (int64_t j = 0; j < row; j += kLanes) {
      const Words both = load_words(pairs + j);
      store(to + j, first_halves(both));
      store(to + row + j, second_halves(both));
    }
  }
}

// float32 of rows of pairs of int16, likewise.
void widen_integer_pairs(const int16_t* pairs, int64_t num_rows, int64_t row, float* to) {
  for (int64_t i = 0; i < num_rows; ++i, pairs += 2 * row, to += 2 * row) {
    for (int64_t j = 0; j < row; ++j) {
      to[j] = pairs[2 * j];
      to[row + j] = pairs[2 * j + 1];
    }
  }
}

// Sets the values of the tokens before `begin` and from `end` to `behind` to zero.
void clear_values(bool is_float, int64_t d, int begin, int end, int behind, uint32_t* values) {
  const auto clear_token = [&](int token) {
    if (is_float) {
      std::fill_n(values + token * d, d, 0);
      return;
    }
    const uint32_t kept = token % 2 == 0 ? 0xffff0000u : 0x0000ffffu;  // of the first number are the low bits
    for (int64_t i = 0; i < d; ++i) values[token / 2 * d + i] &= kept;
  };
  for (int token = 0; token < begin; ++token) clear_token(token);
  for (int token = end; token < behind; ++token) clear_token(token);
}

// Keys and values of up to 64 tokens in a row.
struct Stretches {
  const uint8_t* keys[Prefetch::kStretches];
  const uint8_t* values[Prefetch::kStretches];
};

// Where what is ahead lies. Its scales are so few that they are asked for at once.
Stretches stretches_of(const Pages& pages, Ahead& ahead) {
  const int64_t stored_bytes = pages.head_dim * bytes_of(pages.type);
  const uint8_t* const data = static_cast<const uint8_t*>(pages.data) + ahead.head * pages.page_size * stored_bytes;
  Stretches found{};
  for (int half = 0; half * kHalfKeys < ahead.count; ++half) {
    const Run run = ahead.walk.next(kHalfKeys);
    found.keys[half] = data + run.key * stored_bytes;
    found.values[half] = data + run.value * stored_bytes;
    if (!has_scales(pages)) continue;
    const float* const scales = pages.scales + ahead.head * pages.page_size;
    for (int first = 0; first < kHalfKeys; first += kLanes) {
      prefetch(scales + run.key + first);
      prefetch(scales + run.value + first);
    }
  }
  return found;
}

// Bytes of the values that a half of `count` tokens is multiplied with, which lie token behind token, or pair behind pair.
int64_t bytes_of_values(const Pages& pages, int count) {
  return tokens_multiplied(pages, std::clamp(count, 0, kHalfKeys)) * pages.head_dim * bytes_of(pages.type);
}

void begin_prefetch_of_keys(const Pages& pages, const uint8_t* const (&keys)[Prefetch::kStretches], int count, Prefetch& to) {
  to.begin(keys, count > 0 ? kHalfKeys * pages.head_dim * bytes_of(pages.type) : 0);
  if (count <= kHalfKeys) to.prefetch_rest();  // of one half, and few lines
}

void begin_prefetch_of_values(const Pages& pages, const uint8_t* const (&values)[Prefetch::kStretches], int count,
                              Prefetch& to) {
  to.begin(values, count > 0 ? kHalfKeys * pages.head_dim * bytes_of(pages.type) : 0);
  if (count == kBlockKeys) return;
  for (int half = 0; half < 2; ++half) to.shorten(half, bytes_of_values(pages, count - half * kHalfKeys));
  to.prefetch_rest();
}

// Begins to look at what comes next: `own` are the values of a block, which `count` of its tokens reach.
void begin_prefetch(const Pages& pages, Ahead& ahead, const uint8_t* const (&own)[Prefetch::kStretches], int count,
                    const Block& block) {
  constexpr int64_t kLeastDistance = 8 << 10;
  const Stretches next = stretches_of(pages, ahead);
  const int64_t bytes = kHalfKeys * pages.head_dim * bytes_of(pages.type);
  if (!block.is_near) {
    block.prefetch.begin({next.keys[0], next.values[0], next.keys[1], next.values[1]}, ahead.count > 0 ? bytes : 0);
    for (int half = 0; half * kHalfKeys < ahead.count; ++half) {
      block.prefetch.shorten(2 * half + 1, bytes_of_values(pages, ahead.count - half * kHalfKeys));
    }
  } else if (block.num_beside * 2 * bytes < kLeastDistance) {
    begin_prefetch_of_keys(pages, next.keys, ahead.count, block.prefetch);
    begin_prefetch_of_values(pages, next.values, ahead.count, block.prefetch_beside_values);
  } else {
    begin_prefetch_of_values(pages, own, count, block.prefetch);
    begin_prefetch_of_keys(pages, next.keys, ahead.count, block.prefetch_beside_values);
  }
}

}  // namespace

void prefetch_packed(const Pages& pages, int part, int64_t vector) {
  const int64_t bytes = bytes_of(pages.type), d = pages.head_dim, token = vector % kHalfKeys;
  const int64_t together = 4 / bytes;  // features or tokens, in a word
  const std::byte* const half = static_cast<const std::byte*>(pages.data) + (vector - token) * d * bytes;
  if (part == 0) {
    for (int64_t i = 0; i < d; i += together) prefetch(half + (i * kHalfKeys + token * together) * bytes);
  } else {
    const std::byte* const from = half + token / together * together * d * bytes;
    for (int64_t at = 0; at < together * d * bytes; at += 64) prefetch(from + at);
  }
}

void write_packed(const Pages& pages, int part, int64_t vector, const float* x) {
  const int64_t d = pages.head_dim, token = vector % kHalfKeys, first = (vector - token) * d;
  if (pages.type == PageType::kFloat32) {
    write_numbers(part, token, d, x, static_cast<float*>(pages.data) + first);
  } else if (pages.type == PageType::kBfloat16) {
    alignas(64) uint16_t halves[kLargestHead];
    for (int64_t i = 0; i < d; i += kLanes) store_bf16(halves + i, load(x + i));
    write_numbers(part, token, d, halves, static_cast<uint16_t*>(pages.data) + first);
  } else if (pages.type == PageType::kInt16) {
    alignas(64) int16_t whole[kLargestHead];
    for (int64_t i = 0; i < d; i += kLanes) store_16_bits(whole + i, load(x + i));
    write_numbers(part, token, d, whole, static_cast<int16_t*>(pages.data) + first);
  } else {
    alignas(64) int8_t bytes[kLargestHead];
    for (int64_t i = 0; i < d; i += kLanes) store_bytes(bytes + i, load(x + i));
    for (int64_t i = 0; i < d && part == 0; ++i) bytes[i] = static_cast<int8_t>(bytes[i] ^ kByteZero);
    write_numbers(part, token, d, bytes, static_cast<int8_t*>(pages.data) + first);
  }
}

void gather_packed(Walk& walk, const Pages& pages, int64_t head, int num_hidden, int count, Ahead ahead, Block& block) {
  const int64_t d = pages.head_dim, words = vector_words(pages), half_words = kHalfKeys * words;
  const Factors factors = factors_of(pages);
  const bool is_float = factors == Factors::kFloats, is_integer = is_of_integers(factors);
  const bool is_as_stored = is_integer || pages.type == (is_float ? PageType::kFloat32 : PageType::kBfloat16);
  const int64_t stored_bytes = d * bytes_of(pages.type);
  const uint8_t* const data = static_cast<const uint8_t*>(pages.data);
  // The numbers of 32 vectors, in the type in which products load them.
  const auto widen = [&](int part, const uint8_t* from, int64_t row, uint32_t* to) {
    if (pages.type == PageType::kInt16) {
      widen_integer_pairs(reinterpret_cast<const int16_t*>(from), kHalfKeys * d / 2 / row, row, reinterpret_cast<float*>(to));
    } else if (is_float) {
      widen_pairs(reinterpret_cast<const uint32_t*>(from), kHalfKeys * d / 2 / row, row, reinterpret_cast<float*>(to));
    } else {
      widen_bytes(from, kHalfKeys * d / 4 / row, row, part == 0 ? 0.0f : 256.0f, part == 0 ? kByteZero : 0.0f, to);
    }
  };
  const uint8_t* values_in_pages[Prefetch::kStretches] = {};
  for (int half = 0; half * kHalfKeys < count; ++half) {
    const Run run = walk.next(kHalfKeys);
    const int begin = std::max(0, num_hidden - half * kHalfKeys), end = std::min(kHalfKeys, count - half * kHalfKeys);
    const uint8_t* const keys = data + (run.key + head * pages.page_size) * stored_bytes;
    const uint8_t* const values = data + (run.value + head * pages.page_size) * stored_bytes;
    values_in_pages[half] = values;
    uint32_t* const own_keys = block.memory + half * half_words;
    uint32_t* const own_values = block.memory + (2 + half) * half_words;
    // Scores of keys that are not seen are replaced, whatever they are; where their values are multiplied, it is with a
    // weight of 0, and they must be numbers, which integers always are.
    const int multiplied = tokens_multiplied(pages, end);
    const bool is_clean = is_integer || (begin == 0 && end == multiplied);
    block.keys[half] = is_as_stored ? reinterpret_cast<const uint32_t*>(keys) : own_keys;
    block.values[half] = is_as_stored && is_clean ? reinterpret_cast<const uint32_t*>(values) : own_values;
    if (!is_as_stored) {
      widen(0, keys, kHalfKeys, own_keys);
      widen(1, values, d, own_values);
    } else if (!is_clean) {
      std::memcpy(own_values, values, multiplied * words * sizeof(uint32_t));
    }
    if (!is_clean) clear_values(is_float, d, begin, end, multiplied, own_values);
    if (has_scales(pages)) {
      const float* const scales = pages.scales + head * pages.page_size;
      std::copy_n(scales + run.key, kHalfKeys, block.key_scales + half * kHalfKeys);
      float* const to = block.value_scales + half * kHalfKeys;
      std::copy_n(scales + run.value, kHalfKeys, to);
      std::fill_n(to, begin, 0.0f);
      std::fill(to + end, to + kHalfKeys, 0.0f);
    }
  }
  begin_prefetch(pages, ahead, values_in_pages, count, block);
}

}  // namespace eagre
