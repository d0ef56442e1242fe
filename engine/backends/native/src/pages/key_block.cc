#include "pages/key_block.h"

#include <algorithm>
#include <cstring>

#include "isa/attention_isa.h"
#include "isa/isa.h"
#include "isa/tile_registers.h"
#include "pages/packed_pages.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;

void prefetch_range(const uint8_t* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) prefetch_later(from + at);
}

// Prefetches a part of what is ahead, because the processor cannot keep track of all of it at once.
void prefetch_some(Ahead& ahead, const Pages& pages, int64_t vector_bytes, int most) {
  if (ahead.count == 0) return;
  const Run run = ahead.walk.next(std::min(most, ahead.count));
  ahead.count -= run.count;
  const uint8_t* data = static_cast<const uint8_t*>(pages.data);
  const int64_t to_head = ahead.head * pages.page_size;
  prefetch_range(data + (run.key + to_head) * vector_bytes, run.count * vector_bytes);
  prefetch_range(data + (run.value + to_head) * vector_bytes, run.count * vector_bytes);
}

// float32 of `d` numbers of 16 bits.
void widen(PageType type, const uint8_t* from, int64_t d, float* to) {
  if (type == PageType::kInt16) {
    std::copy_n(reinterpret_cast<const int16_t*>(from), d, to);
  } else {
    for (int64_t i = 0; i < d; i += kLanes) store(to + i, load_bf16(reinterpret_cast<const uint16_t*>(from) + i));
  }
}

// bfloat16 of `d` int8; they are exact.
void widen_to_halves(const uint8_t* from, int64_t d, uint16_t* to) {
  for (int64_t i = 0; i < d; i += kLanes) store_bf16(to + i, load_bytes(reinterpret_cast<const int8_t*>(from) + i));
}

// The block's keys and values of int8, four to a word, from where each token's are.
void gather_bytes(const uint8_t* const* keys, const uint8_t* const* values, const Pages& pages, int count, Ahead ahead,
                  Block& block) {
  const int64_t d = pages.head_dim, half_words = kHalfKeys * d / 4;
  uint32_t* const own_values = block.memory + 2 * half_words;
  for (int half = 0; half < 2; ++half) {
    uint32_t* const own_keys = block.memory + half * half_words;
    block.keys[half] = own_keys;
    block.values[half] = own_values + half * half_words;
    for (int first = 0; first < kHalfKeys; first += kLanes) {
      uint8_t* const to = reinterpret_cast<uint8_t*>(own_keys + first);
      transpose_words(keys + half * kHalfKeys + first, static_cast<int>(d / 16), to, kHalfKeys * 4);
      prefetch_some(ahead, pages, d, kLanes);
    }
    for (int64_t i = 0; i < half_words; ++i) own_keys[i] ^= 0x01010101u * kByteZero;
  }
  for (int i = 0; i < (count + 3) / 4; ++i) {
    const uint8_t* const* const four = values + 4 * i;
    for (int64_t j = 0; j < d; ++j) {
      const auto at = [&](int token) { return uint32_t{four[token][j]} << 8 * token; };
      own_values[i * d + j] = at(0) | at(1) | at(2) | at(3);
    }
  }
}

bool has_fast_bf16_dot() {
#if EAGRE_HAS_TILE_REGISTERS
  return true;
#elif defined(__AVX512BF16__)
  static const bool is_amd = __builtin_cpu_is("amd");
  return is_amd;
#else
  return false;
#endif
}

}  // namespace

Factors factors_of(const Pages& pages) {
  if (pages.type == PageType::kFloat32) return Factors::kFloats;
  if (pages.type == PageType::kInt16) return kMultipliesIntegers ? Factors::kInt16Pairs : Factors::kFloats;
  if (pages.type == PageType::kInt8 && kMultipliesIntegers && !EAGRE_HAS_TILE_REGISTERS) return Factors::kBytes;
  if (has_fast_bf16_dot()) return Factors::kPairs;
  return kWidensInProducts ? Factors::kWidenedPairs : Factors::kFloats;
}

bool is_multiplied_as_stored(const Pages& pages) {
  const Factors factors = factors_of(pages);
  if (!is_packed(pages)) return false;
  return is_of_integers(factors) || pages.type == (factors == Factors::kFloats ? PageType::kFloat32 : PageType::kBfloat16);
}

PageType fastest_type() {
  return kHasFastPairs && !has_fast_bf16_dot() ? PageType::kInt16 : PageType::kBfloat16;
}

int tokens_multiplied(const Pages& pages, int count) {
  const Factors factors = factors_of(pages);
  if (EAGRE_HAS_TILE_REGISTERS && factors == Factors::kPairs) return count > 0 ? kHalfKeys : 0;
  const int together = factors == Factors::kFloats ? 1 : factors == Factors::kBytes ? 4 : 2;  // in a word
  return (count + together - 1) / together * together;
}

int64_t vector_words(const Pages& pages) {
  switch (factors_of(pages)) {
    case Factors::kFloats: return pages.head_dim;
    case Factors::kBytes: return pages.head_dim / 4;
    default: return pages.head_dim / 2;
  }
}

int64_t query_bytes(const Pages& pages) {
  switch (factors_of(pages)) {
    case Factors::kPairs: return pages.head_dim * 2;
    case Factors::kBytes: return bytes_of_byte_query(pages.head_dim);
    case Factors::kInt16Pairs: return bytes_of_int16_query(pages.head_dim);
    default: return pages.head_dim * 4;
  }
}

int64_t block_words(const Pages& pages) { return 3 * kBlockKeys * vector_words(pages); }

bool asks_near(const Pages& pages) {
  constexpr int64_t kMostBytes = 16 << 10;  // of the keys of a block; more of them leave too little room for the values
  return keeps_requests() && is_packed(pages) && kBlockKeys * pages.head_dim * bytes_of(pages.type) <= kMostBytes;
}

Block block_at(uint32_t* memory, const Pages& pages, int64_t num_beside, bool waits) {
  Block block{};
  block.memory = memory;
  block.staged = memory + 2 * kBlockKeys * vector_words(pages);
  block.num_beside = num_beside;
  block.is_near = asks_near(pages);
  block.prefetch.set_near(block.is_near, waits);
  block.prefetch_beside_values.set_near(block.is_near, waits);
  return block;
}

namespace {

// Of pages that are not packed.
void gather_rows(Walk& walk, const Pages& pages, int64_t head, int num_hidden, int count, Ahead ahead, Block& block) {
  const int64_t d = pages.head_dim, words = vector_words(pages);
  const Factors factors = factors_of(pages);
  const bool is_float = factors == Factors::kFloats, is_scaled = has_scales(pages);
  const bool is_as_stored =
      factors == Factors::kInt16Pairs || pages.type == (is_float ? PageType::kFloat32 : PageType::kBfloat16);
  const int64_t stored_bytes = d * bytes_of(pages.type);
  alignas(64) static const uint8_t nothing[kLargestHead * 4] = {};
  const uint8_t* const data = static_cast<const uint8_t*>(pages.data);
  const int64_t to_head = head * pages.page_size;
  const uint8_t* keys[kBlockKeys];
  const uint8_t* values[kBlockKeys];
  for (int first = 0; first < count;) {
    const Run run = walk.next(count - first);
    const uint8_t* key = data + (run.key + to_head) * stored_bytes;
    const uint8_t* value = data + (run.value + to_head) * stored_bytes;
    for (int i = 0; i < run.count; ++i) {
      keys[first + i] = key + i * stored_bytes;
      values[first + i] = value + i * stored_bytes;
    }
    if (is_scaled) {
      std::copy_n(pages.scales + run.key + to_head, run.count, block.key_scales + first);
      std::copy_n(pages.scales + run.value + to_head, run.count, block.value_scales + first);
    }
    first += run.count;
  }
  for (int i = 0; i < num_hidden; ++i) keys[i] = values[i] = nothing;
  for (int i = count; i < kBlockKeys; ++i) keys[i] = values[i] = nothing;
  if (is_scaled) {  // the scales are applied to scores and weights
    std::fill_n(block.key_scales, num_hidden, 0.0f);
    std::fill_n(block.value_scales, num_hidden, 0.0f);
    std::fill(block.key_scales + count, block.key_scales + kBlockKeys, 0.0f);
    std::fill(block.value_scales + count, block.value_scales + kBlockKeys, 0.0f);
  }
  if (factors == Factors::kBytes) return gather_bytes(keys, values, pages, count, ahead, block);
  const auto widened = [&](const uint8_t* from, int i) {
    uint32_t* wide = block.staged + i * words;
    if (is_float) {
      widen(pages.type, from, d, reinterpret_cast<float*>(wide));
    } else {
      widen_to_halves(from, d, reinterpret_cast<uint16_t*>(wide));
    }
    return reinterpret_cast<const uint8_t*>(wide);
  };
  if (!is_as_stored) {
    for (int i = num_hidden; i < count; ++i) keys[i] = widened(keys[i], i);
  }
  uint32_t* const own_values = block.memory + kBlockKeys * words;
  for (int half = 0; half < 2; ++half) {
    block.keys[half] = block.memory + half * kHalfKeys * words;
    block.values[half] = own_values + half * kHalfKeys * words;
  }
  for (int vector = 0; vector < kKeyVectors; ++vector) {
    const uint8_t* rows[kLanes];
    uint32_t* const own_keys = block.memory + vector / 2 * kHalfKeys * words + vector % 2 * kLanes;
    for (int64_t at = 0; at < words; at += 16) {
      for (int i = 0; i < kLanes; ++i) rows[i] = keys[vector * kLanes + i] + at * 4;
      uint8_t* to = reinterpret_cast<uint8_t*>(own_keys + at * kHalfKeys);
      transpose_words(rows, static_cast<int>(std::min<int64_t>(16, words - at) / 4), to, kHalfKeys * 4);
    }
    prefetch_some(ahead, pages, stored_bytes, kLanes);
  }
  if (is_float) {
    for (int i = 0; i < count; ++i) {
      float* to = reinterpret_cast<float*>(own_values + i * d);
      if (is_as_stored || values[i] == nothing) {
        std::memcpy(to, values[i], d * sizeof(float));
      } else {
        widen(pages.type, values[i], d, to);
      }
    }
    return;
  }
  if (!is_as_stored) {
    for (int i = num_hidden; i < count; ++i) values[i] = widened(values[i], i);
  }
  // As many as a multiple of 32 keys has, as tile registers take them.
  for (int i = 0; i < (count + 31) / 32 * 16; ++i) {
    const uint16_t* a = reinterpret_cast<const uint16_t*>(values[2 * i]);
    const uint16_t* b = reinterpret_cast<const uint16_t*>(values[2 * i + 1]);
    for (int64_t j = 0; j < d; j += kLanes) interleave_bf16(a + j, b + j, own_values + i * d + j);
  }
}

template <class To, class From>
inline To same_bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Which powers of two the scales of values are. Those below kLeastByteScale, whose bytes are all 0, count as this, so that
// there are inverses. (Compilers make vectors of this loop, because it has no conditions.)
void take_logs(Block& block) {
  constexpr int32_t kMost = 0x7f7fffff;  // the bits of the largest number
  constexpr int32_t kRootOfHalf = 0x3f3504f3, kNoNumber = 0x7fc00000;
  const int32_t least = same_bits_of<int32_t>(kLeastByteScale);
  for (int i = 0; i < kBlockKeys; ++i) {
    const int32_t above = (same_bits_of<int32_t>(block.value_scales[i]) & 0x7fffffff) - least;
    const int32_t bits = least + (above & ~(above >> 31));
    const int32_t exponent = (bits - kRootOfHalf) >> 23, is_none = (kMost - bits) >> 31;
    // Of 1 + x between the roots of 1/2 and 2, by a polynomial whose largest error, 1.5e-5, is as small as possible.
    const float x = same_bits_of<float>(bits - exponent * (1 << 23)) - 1.0f;
    const float y = ((0.252660248f * x - 0.394575368f) * x + 0.486686155f) * x - 0.720241803f;
    const float log = static_cast<float>(exponent) + (y * x + 1.44257801f) * x;
    block.value_logs[i] = same_bits_of<float>(same_bits_of<int32_t>(log) | (is_none & kNoNumber));
    block.value_inverses[i] = same_bits_of<float>(same_bits_of<int32_t>(1.0f / same_bits_of<float>(bits)) & ~is_none);
  }
}

}  // namespace

void gather(Walk& walk, const Pages& pages, int64_t head, int num_hidden, int count, Ahead ahead, Block& block) {
  if (is_packed(pages)) {
    gather_packed(walk, pages, head, num_hidden, count, ahead, block);
  } else {
    gather_rows(walk, pages, head, num_hidden, count, ahead, block);
  }
  if (factors_of(pages) == Factors::kBytes) take_logs(block);
}

}  // namespace eagre
