// The pages of one layer, as cache/storage.py lays them out.
#pragma once

#include <cstdint>

namespace eagre {

constexpr int kLargestHead = 704;  // features

enum class PageType { kFloat32, kBfloat16, kInt16, kInt8 };

inline int64_t bytes_of(PageType type) { return type == PageType::kFloat32 ? 4 : type == PageType::kInt8 ? 1 : 2; }

// Keys and values of one layer, [page][parts][head][token][feature]; packed_pages.h tells how tokens and features lie. Of
// one part, a vector is key and value at once, as latents are.
struct Pages {
  PageType type;
  void* data;
  float* scales;  // [page][parts][head][token] of pages of integers, else null
  int64_t num_pages, num_parts, page_size, num_heads, head_dim;
};

// Whether a vector is in pages as integers, with a scale.
inline bool has_scales(const Pages& p) { return p.type == PageType::kInt16 || p.type == PageType::kInt8; }

// The least scale of int8, 2^-60: vectors of less are bytes of 0. Softmax weights that are multiplied with scales of values
// fit float32 then.
constexpr float kLeastByteScale = 8.67361738e-19f;

// Whether vectors are in pages as their Hadamard transforms (see vectors/hadamard.h). A scale follows the largest feature of
// a vector, so that a feature far larger than the others would take bits away from them; of 16 bits enough are left.
inline bool is_transformed(const Pages& p) { return p.type == PageType::kInt8; }

// Index of a token's vector, in vectors of head_dim features; part: 0 for keys, 1 for values that are vectors of their own.
inline int64_t vector_index(const Pages& p, int64_t page, int64_t part, int64_t head, int64_t token) {
  return ((page * p.num_parts + part) * p.num_heads + head) * p.page_size + token;
}

}  // namespace eagre
