#include "attention/key_block.h"

#include <algorithm>
#include <cstring>

#include "isa/isa.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;
constexpr int kKeyVectors = kBlockKeys / kLanes;

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

}  // namespace

void gather(Walk& walk, const Pages& pages, int64_t head, int num_hidden, int count, Ahead ahead, uint8_t* staged,
            Block& block) {
  const int64_t d = pages.head_dim;
  const bool is_float = pages.type == PageType::kFloat32, is_int8 = pages.type == PageType::kInt8;
  const int64_t stored_bytes = d * (is_float ? 4 : is_int8 ? 1 : 2), vector_bytes = d * (is_float ? 4 : 2);
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
  if (is_int8) {  // exact in bfloat16; the scales are applied to scores and weights
    for (int i = num_hidden; i < count; ++i) {
      uint16_t* wide = reinterpret_cast<uint16_t*>(staged + 2 * i * vector_bytes);
      for (int64_t j = 0; j < d; j += kLanes) {
        store_bf16(wide + j, load_bytes(reinterpret_cast<const int8_t*>(keys[i]) + j));
        store_bf16(wide + d + j, load_bytes(reinterpret_cast<const int8_t*>(values[i]) + j));
      }
      keys[i] = reinterpret_cast<const uint8_t*>(wide);
      values[i] = reinterpret_cast<const uint8_t*>(wide + d);
    }
    std::fill_n(block.key_scales, num_hidden, 0.0f);
    std::fill_n(block.value_scales, num_hidden, 0.0f);
    std::fill(block.key_scales + count, block.key_scales + kBlockKeys, 0.0f);
    std::fill(block.value_scales + count, block.value_scales + kBlockKeys, 0.0f);
  }
  for (int vector = 0; vector < kKeyVectors; ++vector) {
    const uint8_t* rows[kLanes];
    for (int64_t at = 0; at < vector_bytes; at += 64) {
      for (int i = 0; i < kLanes; ++i) rows[i] = keys[vector * kLanes + i] + at;
      uint8_t* to = reinterpret_cast<uint8_t*>(block.keys + at / 4 * kBlockKeys + vector * kLanes);
      const int64_t left = std::min<int64_t>(64, vector_bytes - at);
      transpose_words(rows, static_cast<int>(left / 16), to, kBlockKeys * 4);
    }
    prefetch_some(ahead, pages, stored_bytes, kLanes);
  }
  if (is_float) {
    for (int i = 0; i < count; ++i) std::memcpy(block.values + i * d, values[i], vector_bytes);
  } else {
    for (int i = 0; i < (count + 1) / 2; ++i) {
      const uint16_t* a = reinterpret_cast<const uint16_t*>(values[2 * i]);
      const uint16_t* b = reinterpret_cast<const uint16_t*>(values[2 * i + 1]);
      for (int64_t j = 0; j < d; j += kLanes) interleave_bf16(a + j, b + j, block.values + i * d + j);
    }
  }
}

}  // namespace eagre
