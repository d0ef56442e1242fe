#include "attention/key_block.h"

#include <algorithm>
#include <cstring>

#include "isa/isa.h"

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

// float32 of `d` stored features.
void widen(PageType type, const uint8_t* from, int64_t d, float* to) {
  for (int64_t i = 0; i < d; i += kLanes) {
    store(to + i, type == PageType::kInt8 ? load_bytes(reinterpret_cast<const int8_t*>(from) + i)
                                          : load_bf16(reinterpret_cast<const uint16_t*>(from) + i));
  }
}

// float32 of bfloat16 keys, of [d / 2 words][kBlockKeys] pairs.
void widen_pairs(const uint32_t* pairs, int64_t d, uint32_t* to) {
  for (int64_t word = 0; word < d / 2; ++word, pairs += kBlockKeys, to += 2 * kBlockKeys) {
    for (int i = 0; i < kBlockKeys; i += kLanes) {
      const Words both = load_words(pairs + i);
      store(reinterpret_cast<float*>(to) + i, first_halves(both));
      store(reinterpret_cast<float*>(to) + kBlockKeys + i, second_halves(both));
    }
  }
}

// bfloat16 of `d` int8; they are exact.
void widen_to_halves(const uint8_t* from, int64_t d, uint16_t* to) {
  for (int64_t i = 0; i < d; i += kLanes) store_bf16(to + i, load_bytes(reinterpret_cast<const int8_t*>(from) + i));
}

int64_t vector_words(const Pages& pages) { return multiplies_floats(pages) ? pages.head_dim : pages.head_dim / 2; }

bool has_fast_bf16_dot() {
#ifdef __AVX512BF16__
  static const bool is_amd = __builtin_cpu_is("amd");
  return is_amd;
#else
  return false;
#endif
}

}  // namespace

bool multiplies_floats(const Pages& pages) { return pages.type == PageType::kFloat32 || !has_fast_bf16_dot(); }

int64_t block_words(const Pages& pages) { return 3 * kBlockKeys * vector_words(pages); }

Block block_at(uint32_t* memory, const Pages& pages) {
  const int64_t words = kBlockKeys * vector_words(pages);
  return {memory, memory + words, memory + 2 * words, {}, {}};
}

void gather(Walk& walk, const Pages& pages, int64_t head, int num_hidden, int count, Ahead ahead, Block& block) {
  const int64_t d = pages.head_dim, words = vector_words(pages);
  const bool is_float = multiplies_floats(pages), is_int8 = pages.type == PageType::kInt8;
  const bool is_as_stored = pages.type == (is_float ? PageType::kFloat32 : PageType::kBfloat16);
  const int64_t stored_bytes = d * (pages.type == PageType::kFloat32 ? 4 : is_int8 ? 1 : 2);
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
    if (is_int8) {
      std::copy_n(pages.scales + run.key + to_head, run.count, block.key_scales + first);
      std::copy_n(pages.scales + run.value + to_head, run.count, block.value_scales + first);
    }
    first += run.count;
  }
  for (int i = 0; i < num_hidden; ++i) keys[i] = values[i] = nothing;
  for (int i = count; i < kBlockKeys; ++i) keys[i] = values[i] = nothing;
  if (is_int8) {  // the scales are applied to scores and weights
    std::fill_n(block.key_scales, num_hidden, 0.0f);
    std::fill_n(block.value_scales, num_hidden, 0.0f);
    std::fill(block.key_scales + count, block.key_scales + kBlockKeys, 0.0f);
    std::fill(block.value_scales + count, block.value_scales + kBlockKeys, 0.0f);
  }
  const auto widened = [&](const uint8_t* from, int i) {
    uint32_t* wide = block.staged + i * words;
    if (is_float) {
      widen(pages.type, from, d, reinterpret_cast<float*>(wide));
    } else {
      widen_to_halves(from, d, reinterpret_cast<uint16_t*>(wide));
    }
    return reinterpret_cast<const uint8_t*>(wide);
  };
  if (is_int8) {
    for (int i = num_hidden; i < count; ++i) keys[i] = widened(keys[i], i);
  }
  // What is stored as bfloat16 is transposed as such, in half the time.
  const bool is_widened_last = is_float && pages.type == PageType::kBfloat16;
  const int64_t key_words = is_widened_last ? d / 2 : words;
  uint32_t* const transposed = is_widened_last ? block.staged : block.keys;
  for (int vector = 0; vector < kKeyVectors; ++vector) {
    const uint8_t* rows[kLanes];
    for (int64_t at = 0; at < key_words; at += 16) {
      for (int i = 0; i < kLanes; ++i) rows[i] = keys[vector * kLanes + i] + at * 4;
      uint8_t* to = reinterpret_cast<uint8_t*>(transposed + at * kBlockKeys + vector * kLanes);
      transpose_words(rows, static_cast<int>(std::min<int64_t>(16, key_words - at) / 4), to, kBlockKeys * 4);
    }
    prefetch_some(ahead, pages, stored_bytes, kLanes);
  }
  if (is_widened_last) widen_pairs(transposed, d, block.keys);
  if (is_float) {
    for (int i = 0; i < count; ++i) {
      float* to = reinterpret_cast<float*>(block.values + i * d);
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
  for (int i = 0; i < (count + 1) / 2; ++i) {
    const uint16_t* a = reinterpret_cast<const uint16_t*>(values[2 * i]);
    const uint16_t* b = reinterpret_cast<const uint16_t*>(values[2 * i + 1]);
    for (int64_t j = 0; j < d; j += kLanes) interleave_bf16(a + j, b + j, block.values + i * d + j);
  }
}

}  // namespace eagre
