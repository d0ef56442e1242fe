#include "attention/placement.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "isa/attention_isa.h"
#include "isa/isa.h"
#include "pages/key_block.h"
#include "pages/packed_pages.h"
#include "vectors/hadamard.h"
#include "vectors/magnitudes.h"
#include "vectors/norms.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;

// Rotates the pairs (i, i + rotary_dim / 2) of a head (Su et al., "RoFormer", 2021); what is behind them passes through.
void rotate(const float* x, const float* rotation, int64_t rotary_dim, int64_t head_dim, float scale, float* out) {
  const int64_t half = rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float c = rotation[i], s = rotation[half + i], a = x[i], b = x[half + i];
    out[i] = (a * c - b * s) * scale;
    out[half + i] = (b * c + a * s) * scale;
  }
  for (int64_t i = rotary_dim; i < head_dim; ++i) out[i] = x[i] * scale;
}

// Norms, rotates and scales the heads of a token, transforms them as those in the pages are, and calls
// put(head, float32[head_dim]) for each.
template <class Put>
void for_each_head(const AttentionInput& in, const HeadNorm& norm, int64_t token, int64_t first_head, int64_t num_heads,
                   const Pages& pages, float scale, const Put& put) {
  const int64_t d = in.head_dim;
  const float* x = in.qkv + (token * (in.num_heads + pages.num_parts * pages.num_heads) + first_head) * d;
  const float* rotation = in.rotations + token * in.rotary_dim;
  const float of_all = norm.is_of_all_heads ? inverse_rms(x, num_heads * d, in.epsilon) : 0.0f;
  alignas(64) float normed[kLargestHead], rotated[kLargestHead];
  for (int64_t head = 0; head < num_heads; ++head, x += d) {
    const float* from = x;
    if (norm.weights != nullptr) {
      const float factor = norm.is_of_all_heads ? of_all : inverse_rms(x, d, in.epsilon);
      scale_by(x, factor, norm.weights + (norm.is_of_all_heads ? head * d : 0), d, normed);
      from = normed;
    }
    rotate(from, rotation, in.rotary_dim, d, scale, rotated);
    std::fill(rotated + d, rotated + pages.head_dim, 0.0f);
    if (is_transformed(pages)) hadamard(rotated, d, rotated);
    put(head, rotated);
  }
}

// An integer query's scale, or no number where a feature is none, which integers would not show.
void write_scale(float scale, const float* query, int64_t d, std::byte* to) {
  const float known = scale + not_finite(query, d);
  std::memcpy(to, &known, sizeof known);
}

void write_bytes_of_query(const float* query, int64_t d, std::byte* to) {
  const float scale = largest_magnitude(query, d) / kInt8Max;
  const Floats inverse = broadcast(inverse_of(scale));
  alignas(64) int8_t bytes[kLargestHead];
  for (int64_t i = 0; i < d; i += kLanes) store_bytes(bytes + i, mul(load(query + i), inverse));
  int32_t sum = 0;
  for (int64_t i = 0; i < d; ++i) sum += bytes[i];
  if constexpr (kByteParts == 1) {
    std::memcpy(to, bytes, d);
  } else {  // of each four, the first and the third as integers of 16 bits, and then the second and the fourth
    int16_t* const parts = reinterpret_cast<int16_t*>(to);
    for (int64_t i = 0; i < d; i += 4) {
      parts[i] = bytes[i];
      parts[i + 1] = bytes[i + 2];
      parts[i + 2] = bytes[i + 1];
      parts[i + 3] = bytes[i + 3];
    }
  }
  write_scale(scale, query, d, to + kByteParts * d);
  const int32_t too_much = -kByteZero * sum;
  std::memcpy(to + kByteParts * d + sizeof(float), &too_much, sizeof too_much);
}

// A query as the products of attention take it.
void write_query(Factors factors, const float* query, int64_t d, std::byte* to) {
  if (factors == Factors::kPairs) {
    for (int64_t i = 0; i < d; i += kLanes) store_bf16(reinterpret_cast<uint16_t*>(to) + i, load(query + i));
  } else if (factors == Factors::kBytes) {
    write_bytes_of_query(query, d, to);
  } else if (factors == Factors::kInt16Pairs) {
    const float scale = int16_step(query, d);
    const Floats inverse = broadcast(inverse_of(scale));
    for (int64_t i = 0; i < d; i += kLanes) {
      store_16_bits(reinterpret_cast<int16_t*>(to) + i, mul(load(query + i), inverse));
    }
    write_scale(scale, query, d, to + d * sizeof(int16_t));
  } else {
    std::memcpy(to, query, d * sizeof(float));
  }
}

void write_in_a_row(const Pages& p, int64_t vector, const float* x) {
  const int64_t at = vector * p.head_dim;
  if (p.type == PageType::kFloat32) {
    std::memcpy(static_cast<float*>(p.data) + at, x, p.head_dim * sizeof(float));
  } else if (p.type == PageType::kBfloat16) {
    for (int64_t i = 0; i < p.head_dim; i += kLanes) store_bf16(static_cast<uint16_t*>(p.data) + at + i, load(x + i));
  } else if (p.type == PageType::kInt16) {
    for (int64_t i = 0; i < p.head_dim; i += kLanes) store_16_bits(static_cast<int16_t*>(p.data) + at + i, load(x + i));
  } else {
    for (int64_t i = 0; i < p.head_dim; i += kLanes) store_bytes(static_cast<int8_t*>(p.data) + at + i, load(x + i));
  }
}

// part: 0 for keys, 1 for values.
void write_vector(const Pages& p, int part, int64_t vector, const float* x) {
  alignas(64) float scaled[kLargestHead];
  if (has_scales(p)) {  // symmetric, one scale for each token and head
    const bool has_bytes = p.type == PageType::kInt8;
    const float scale = has_bytes ? largest_magnitude(x, p.head_dim) / kInt8Max : int16_step(x, p.head_dim);
    const Floats inverse = broadcast(has_bytes && scale < kLeastByteScale ? 0.0f : inverse_of(scale));
    for (int64_t i = 0; i < p.head_dim; i += kLanes) store(scaled + i, mul(load(x + i), inverse));
    p.scales[vector] = scale + not_finite(x, p.head_dim);
    x = scaled;
  }
  if (is_packed(p)) {
    write_packed(p, part, vector, x);
  } else {
    write_in_a_row(p, vector, x);
  }
}

void place_query(const AttentionInput& in, const Pages& pages, int64_t token, const Queries& queries) {
  const Factors factors = factors_of(pages);
  for_each_head(in, in.q_norm, token, 0, in.num_heads, pages, in.query_scale, [&](int64_t head, const float* query) {
    std::byte* to = queries.at(head / queries.group, token) + head % queries.group * queries.bytes_per_head;
    write_query(factors, query, pages.head_dim, to);
  });
}

// The page of a position of a row; 0, which is nobody's, where it has none.
int64_t page_of(const AttentionInput& in, const Pages& pages, const StepRow& row, int64_t position) {
  const int64_t index = position / pages.page_size;
  const int64_t page = index < in.table_width ? in.page_table[row.row * in.table_stride + index] : 0;
  return page < 0 || page >= pages.num_pages ? 0 : page;
}

// Whether keys and values of kLanes tokens at once become packed ones by whole vectors.
bool takes_several(const AttentionInput& in, const Pages& pages) {
  return pages.type == PageType::kBfloat16 && is_packed(pages) && in.head_dim == pages.head_dim &&
         !is_transformed(pages) && !in.k_norm.is_of_all_heads;
}

// Writes keys and values of up to kLanes tokens from `token` on, the first at a multiple of kLanes in its page; behind the
// last one stand zeros then.
void write_several(const AttentionInput& in, const Pages& pages, int64_t page, int64_t offset, int64_t token, int count) {
  const int64_t d = pages.head_dim, heads = pages.num_heads, width = (in.num_heads + 2 * heads) * d;
  alignas(64) uint16_t rows[kLanes][kLargestHead];
  for (int i = count; i < kLanes; ++i) std::fill_n(rows[i], d, uint16_t{0});
  const uint8_t* bytes[kLanes];
  for (int i = 0; i < kLanes; ++i) bytes[i] = reinterpret_cast<const uint8_t*>(rows[i]);
  const auto put = [&](int i, const float* x) {
    for (int64_t j = 0; j < d; j += kLanes) store_bf16(rows[i] + j, load(x + j));
  };
  const auto words_at = [&](int part, int64_t head) {  // of the kHalfKeys vectors that lie together
    const int64_t vector = vector_index(pages, page, part, head, offset);
    return reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(pages.data) + (vector - offset % kHalfKeys) * d);
  };
  for (int64_t head = 0; head < heads; ++head) {
    for (int i = 0; i < count; ++i) {
      for_each_head(in, in.k_norm, token + i, in.num_heads + head, 1, pages, 1.0f,
                    [&](int64_t, const float* key) { put(i, key); });
    }
    uint8_t* const keys = reinterpret_cast<uint8_t*>(words_at(0, head) + offset % kHalfKeys);
    transpose_words(bytes, static_cast<int>(d / 8), keys, kHalfKeys * sizeof(uint32_t));
    for (int i = 0; i < count; ++i) put(i, in.qkv + (token + i) * width + (in.num_heads + heads + head) * d);
    uint32_t* const values = words_at(1, head) + offset % kHalfKeys / 2 * d;
    for (int i = 0; i < kLanes; i += 2) {
      for (int64_t j = 0; j < d; j += kLanes) interleave_bf16(rows[i] + j, rows[i + 1] + j, values + i / 2 * d + j);
    }
  }
}

}  // namespace

void prefetch_place(const AttentionInput& in, const Pages& pages, const StepRow& row) {
  const int64_t page = page_of(in, pages, row, row.start), offset = row.start % pages.page_size;
  if (page == 0 || !is_packed(pages)) return;
  for (int part = 0; part < 2; ++part) {
    for (int64_t head = 0; head < pages.num_heads; ++head) {
      prefetch_packed(pages, part, vector_index(pages, page, part, head, offset));
    }
  }
}

void place_tokens(const AttentionInput& in, const Pages& pages, const StepRow& row, int32_t first, int32_t end,
                  const Queries& queries) {
  const bool are_several = takes_several(in, pages), ends_text = !in.is_causal && end == row.num_tokens;
  for (int32_t i = first, count; i < end; i += count) {
    const int64_t token = row.first_token + i, position = row.start + i;
    count = std::min(kLanes, end - i);
    // Behind the end of a text its pages hold nothing.
    if (!are_several || position % kLanes != 0 || (count < kLanes && !ends_text)) {
      count = 1;
      place_token(in, pages, row, token, queries);
      continue;
    }
    for (int j = 0; j < count; ++j) place_query(in, pages, token + j, queries);
    const int64_t page = page_of(in, pages, row, position);
    if (page != 0) write_several(in, pages, page, position % pages.page_size, token, count);
  }
}

void place_token(const AttentionInput& in, const Pages& pages, const StepRow& row, int64_t token, const Queries& queries) {
  place_query(in, pages, token, queries);
  const int64_t position = row.start + (token - row.first_token);
  const int64_t offset = position % pages.page_size, d = pages.head_dim;
  const int64_t page = page_of(in, pages, row, position);
  if (page == 0) return;
  for_each_head(in, in.k_norm, token, in.num_heads, pages.num_heads, pages, 1.0f, [&](int64_t head, const float* key) {
    write_vector(pages, 0, vector_index(pages, page, 0, head, offset), key);
  });
  if (pages.num_parts == 1) return;
  const int64_t own = in.head_dim;
  const float* value = in.qkv + (token * (in.num_heads + 2 * pages.num_heads) + in.num_heads + pages.num_heads) * own;
  alignas(64) float made[kLargestHead];
  std::fill(made + own, made + d, 0.0f);
  for (int64_t head = 0; head < pages.num_heads; ++head, value += own) {
    if (own < d) std::copy_n(value, own, made);
    if (is_transformed(pages)) hadamard(value, d, made);
    const bool is_made = own < d || is_transformed(pages);
    write_vector(pages, 1, vector_index(pages, page, 1, head, offset), is_made ? made : value);
  }
}

}  // namespace eagre
