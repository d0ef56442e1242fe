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

// A query as the products of attention take it.
void write_query(Factors factors, const float* query, int64_t d, std::byte* to) {
  if (factors == Factors::kPairs) {
    for (int64_t i = 0; i < d; i += kLanes) store_bf16(reinterpret_cast<uint16_t*>(to) + i, load(query + i));
  } else if (!is_of_integers(factors)) {
    std::memcpy(to, query, d * sizeof(float));
  } else {  // the scale stands behind the numbers
    // The sum of d products with bytes must fit an int32: from 513 features on, queries have fewer steps.
    const float most = std::min(kInt16Max, std::floor(2147483647.0f / (127.0f * static_cast<float>(d))) - 1.0f);
    const float scale = factors == Factors::kInt16Pairs ? int16_step(query, d) : largest_magnitude(query, d) / most;
    const Floats inverse = broadcast(inverse_of(scale));
    for (int64_t i = 0; i < d; i += kLanes) {
      store_16_bits(reinterpret_cast<int16_t*>(to) + i, mul(load(query + i), inverse));
    }
    const float known = scale + not_finite(query, d);
    std::memcpy(to + d * sizeof(int16_t), &known, sizeof known);
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
    const Floats inverse = broadcast(inverse_of(scale));
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

// Where a token's keys and values go.
struct Place {
  int64_t page, offset;
  bool is_written;  // the null page is nobody's
};

Place place_of(const AttentionInput& in, const Pages& pages, const StepRow& row, int64_t position) {
  const int64_t index = position / pages.page_size;
  const int64_t page = index < in.table_width ? in.page_table[row.row * in.table_stride + index] : 0;
  return {page, position % pages.page_size, page > 0 && page < pages.num_pages};
}

}  // namespace

void prefetch_place(const AttentionInput& in, const Pages& pages, const StepRow& row) {
  const Place place = place_of(in, pages, row, row.start);
  if (!place.is_written || !is_packed(pages)) return;
  for (int part = 0; part < 2; ++part) {
    for (int64_t head = 0; head < pages.num_heads; ++head) {
      prefetch_packed(pages, part, vector_index(pages, place.page, part, head, place.offset));
    }
  }
}

void place_token(const AttentionInput& in, const Pages& pages, const StepRow& row, int64_t token, const Queries& queries) {
  const int64_t d = pages.head_dim;
  const Factors factors = factors_of(pages);
  for_each_head(in, in.q_norm, token, 0, in.num_heads, pages, in.query_scale, [&](int64_t head, const float* query) {
    std::byte* to = queries.at(head / queries.group, token) + head % queries.group * queries.bytes_per_head;
    write_query(factors, query, d, to);
  });
  const auto [page, offset, is_written] = place_of(in, pages, row, row.start + (token - row.first_token));
  if (!is_written) return;
  const auto put_key = [&, page = page, offset = offset](int64_t head, const float* key) {
    write_vector(pages, 0, vector_index(pages, page, 0, head, offset), key);
  };
  for_each_head(in, in.k_norm, token, in.num_heads, pages.num_heads, pages, 1.0f, put_key);
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
