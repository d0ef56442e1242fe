// Attention as a target of XLA's foreign function interface.
//
// Shapes are checked here, so that a mistake in a caller is an error and not a read or write astray.
#include <string>

#include "attention/attention.h"
#include "attention/plan.h"
#include "ffi/handler.h"
#include "ffi/step.h"
#include "vectors/elementary.h"

namespace eagre {
namespace {

constexpr size_t kManyTokens = 1024;  // of an encoder, whose attention to each other takes some milliseconds

// The pages of one layer, of an array [layer, page, parts, head, token, feature] of which `scales` are those of integers.
ffi::Error read_pages(ffi::AnyBuffer data, ffi::AnyBuffer scales, int64_t layer, Pages& pages) {
  const auto shape = data.dimensions();
  if (shape.size() != 6 || (shape[2] != 1 && shape[2] != 2)) return invalid("the pages have another shape");
  int64_t item = 0;
  switch (data.element_type()) {
    case ffi::F32: pages.type = PageType::kFloat32; item = 4; break;
    case ffi::BF16: pages.type = PageType::kBfloat16; item = 2; break;
    case ffi::S16: pages.type = PageType::kInt16; item = 2; break;
    case ffi::S8: pages.type = PageType::kInt8; item = 1; break;
    default: return invalid("pages are of float32, bfloat16, int16 or int8");
  }
  pages.num_pages = shape[1];
  pages.num_parts = shape[2];
  pages.num_heads = shape[3];
  pages.page_size = shape[4];
  pages.head_dim = shape[5];
  const int64_t vectors = pages.num_pages * pages.page_size * pages.num_parts * pages.num_heads;
  if (layer < 0 || layer >= shape[0]) return invalid("there is no such layer");
  if (pages.head_dim % 16 != 0 || pages.head_dim > kLargestHead) return invalid("heads are of 16, 32, ... 704 features");
  pages.data = static_cast<std::byte*>(data.untyped_data()) + layer * vectors * pages.head_dim * item;
  if (has_scales(pages)) {
    if (scales.element_type() != ffi::F32 || static_cast<int64_t>(scales.element_count()) != shape[0] * vectors) {
      return invalid("the scales have another shape");
    }
    pages.scales = static_cast<float*>(scales.untyped_data()) + layer * vectors;
  }
  return ffi::Error::Success();
}

// What a layer has of int32[layers].
ffi::Error read_constant(const S32& constants, int64_t layer, const char* of_what, int64_t& value) {
  if (constants.dimensions().size() != 1 || layer >= constants.dimensions()[0]) {
    return invalid(std::string(of_what) + " have another shape");
  }
  value = constants.typed_data()[layer];
  return ffi::Error::Success();
}

// The layer's rotations of float32[tables][tokens][rotary_dim].
ffi::Error read_rotations(const F32& rotations, int64_t table, int64_t num_tokens, int64_t head_dim, AttentionInput& in) {
  const auto shape = rotations.dimensions();
  if (shape.size() != 3 || shape[1] != num_tokens || shape[2] % 2 != 0 || shape[2] > head_dim) {
    return invalid("rotations have another shape");
  }
  if (table < -1 || table >= shape[0]) return invalid("there is no such table of rotations");
  if (table < 0) return ffi::Error::Success();
  in.rotary_dim = shape[2];
  in.rotations = rotations.typed_data() + table * num_tokens * shape[2];
  return ffi::Error::Success();
}

// The layer's norm of float32[layers][head_dim or num_heads * head_dim], or of a buffer without elements.
ffi::Error read_norm(const F32& norm, int64_t layer, int64_t num_heads, int64_t head_dim, HeadNorm& of_heads) {
  if (norm.element_count() == 0) return ffi::Error::Success();
  const auto shape = norm.dimensions();
  if (shape.size() != 2 || layer >= shape[0] || (shape[1] != head_dim && shape[1] != num_heads * head_dim)) {
    return invalid("a norm of queries or keys has another shape");
  }
  of_heads = {norm.typed_data() + layer * shape[1], shape[1] != head_dim};
  return ffi::Error::Success();
}

// The layer's sinks of float32[layers][num_heads], or of a buffer without elements.
ffi::Error read_sinks(const F32& sinks, int64_t layer, int64_t num_heads, const float*& of_heads) {
  if (sinks.element_count() == 0) return ffi::Error::Success();
  const auto shape = sinks.dimensions();
  if (shape.size() != 2 || layer >= shape[0] || shape[1] != num_heads) return invalid("sinks have another shape");
  of_heads = sinks.typed_data() + layer * num_heads;
  return ffi::Error::Success();
}

// Of all layers, float32[num_heads] or a buffer without elements. `rounded_scale`: see AttentionInput.
ffi::Error read_slopes(const F32& slopes, float rounded_scale, AttentionInput& in) {
  if (slopes.element_count() == 0) return ffi::Error::Success();
  if (static_cast<int64_t>(slopes.element_count()) != in.num_heads) return invalid("slopes have another shape");
  in.distance_slopes = slopes.typed_data();
  in.rounded_bias_scale = rounded_scale;
  return ffi::Error::Success();
}

// float32[tokens][heads * size] and float32[tokens][heads], or buffers without elements.
ffi::Error read_index(const F32& queries, const F32& weights, int64_t num_picked, int64_t num_tokens, const Pages& pages,
                      AttentionInput& in) {
  if (queries.element_count() == 0) return ffi::Error::Success();
  const auto shape = queries.dimensions(), of_weights = weights.dimensions();
  if (shape.size() != 2 || of_weights.size() != 2 || shape[0] != num_tokens || of_weights[0] != num_tokens ||
      of_weights[1] < 1 || shape[1] % of_weights[1] != 0 || shape[1] / of_weights[1] > pages.head_dim) {
    return invalid("the index has another shape");
  }
  if (pages.num_parts != 1 || pages.num_heads != 1 || num_picked < 1) return invalid("an index goes with latents alone");
  in.index = {queries.typed_data(), weights.typed_data(), of_weights[1], shape[1] / of_weights[1], num_picked};
  return ffi::Error::Success();
}

// Where a layer's pages are. `places` are int32[layers][2], the place within a page and the group of pages of each layer,
// or a buffer without elements: there is one group, which has the layers in their order. Of each row, the page table has
// the tables of the groups side by side.
ffi::Error read_place(const S32& places, const S32& page_table, int64_t layer, int64_t num_groups, int64_t& place,
                      AttentionInput& in) {
  int64_t group = 0;
  place = layer;
  if (places.element_count() > 0) {
    const auto shape = places.dimensions();
    if (shape.size() != 2 || layer < 0 || layer >= shape[0] || shape[1] != 2) return invalid("places have another shape");
    place = places.typed_data()[2 * layer];
    group = places.typed_data()[2 * layer + 1];
  }
  const auto shape = page_table.dimensions();
  if (shape.size() != 2 || num_groups < 1 || shape[1] % num_groups != 0) {
    return invalid("the page table has another shape");
  }
  if (group < 0 || group >= num_groups) return invalid("there is no such group of pages");
  in.table_stride = shape[1];
  in.table_width = shape[1] / num_groups;
  in.page_table = page_table.typed_data() + group * in.table_width;
  return ffi::Error::Success();
}

// What the rows' tokens see: each row reads its keys once, and each token multiplies with its own.
void count_attention(const StepRows& rows, const AttentionInput& in, const Pages& pages, int64_t bytes_per_feature) {
  int64_t num_read = 0, num_seen = 0;
  for (const StepRow& row : rows.rows()) {
    const int64_t end = in.is_causal ? row.start + row.num_tokens : row.end;
    num_read += end - first_visible(in.window, row.start);
    for (int64_t position = row.start; position < row.start + row.num_tokens; ++position) {
      num_seen += (in.is_causal ? position + 1 : end) - first_visible(in.window, position);
    }
  }
  current_work().num_bytes += num_read * pages.num_parts * pages.num_heads * pages.head_dim * bytes_per_feature;
  current_work().num_operations += 4 * num_seen * in.num_heads * in.head_dim;
}

ffi::Error attention(F32 qkv, F32 rotations, S32 tables, S32 windows, F32 q_norm, F32 k_norm, S32 rows, S32 page_table,
                     S32 layer, ffi::AnyBuffer data, ffi::AnyBuffer scales, F32 sinks, S32 last_seen, S32 first_seen,
                     S32 places, F32 slopes, F32 index_queries, F32 index_weights, F32Result y,
                     ffi::Result<ffi::AnyBuffer> data_out, ffi::Result<ffi::AnyBuffer> scales_out, int64_t num_tiles,
                     int64_t num_groups, double scale, float softcap, float epsilon, bool is_causal,
                     float rounded_bias_scale, int64_t num_picked) {
  if (data.untyped_data() != data_out->untyped_data() || scales.untyped_data() != scales_out->untyped_data()) {
    return invalid("the pages must be updated in place");
  }
  Pages pages{};
  AttentionInput in{};
  const int64_t index = layer.typed_data()[0];
  int64_t place = 0;
  if (ffi::Error error = read_place(places, page_table, index, num_groups, place, in); error.failure()) return error;
  if (ffi::Error error = read_pages(data, scales, place, pages); error.failure()) return error;
  const auto y_shape = y->dimensions(), qkv_shape = qkv.dimensions(), table_shape = page_table.dimensions();
  if (y_shape.size() != 2 || qkv_shape.size() != 2) return invalid("y has another shape");
  in.head_dim = (qkv_shape[1] - y_shape[1]) / (pages.num_parts * pages.num_heads);
  // Norms, sinks and what int8 pages hold are of heads that are as wide as those in the pages.
  const bool may_be_narrow = q_norm.element_count() + k_norm.element_count() + sinks.element_count() == 0 &&
                             pages.type != PageType::kInt8;
  if (in.head_dim <= 0 || in.head_dim > pages.head_dim || (in.head_dim < pages.head_dim && !may_be_narrow)) {
    return invalid("qkv has another shape");
  }
  if (y_shape[1] % in.head_dim != 0) return invalid("y has another shape");
  in.qkv = qkv.typed_data();
  in.num_heads = y_shape[1] / in.head_dim;
  if (in.num_heads % pages.num_heads != 0 || qkv_shape[0] != y_shape[0] ||
      qkv_shape[1] != (in.num_heads + pages.num_parts * pages.num_heads) * in.head_dim) {
    return invalid("qkv has another shape");
  }
  int64_t table = -1;
  if (ffi::Error error = read_constant(tables, index, "tables", table); error.failure()) return error;
  if (ffi::Error error = read_constant(windows, index, "windows", in.window); error.failure()) return error;
  if (in.window < 0) return invalid("a window is negative");
  if (ffi::Error error = read_rotations(rotations, table, y_shape[0], in.head_dim, in); error.failure()) return error;
  if (ffi::Error error = read_norm(q_norm, index, in.num_heads, pages.head_dim, in.q_norm); error.failure()) return error;
  if (ffi::Error error = read_norm(k_norm, index, pages.num_heads, pages.head_dim, in.k_norm); error.failure()) {
    return error;
  }
  if (ffi::Error error = read_sinks(sinks, index, in.num_heads, in.sinks); error.failure()) return error;
  if (ffi::Error error = read_slopes(slopes, rounded_bias_scale, in); error.failure()) return error;
  if (ffi::Error error = read_index(index_queries, index_weights, num_picked, y_shape[0], pages, in); error.failure()) {
    return error;
  }
  in.epsilon = epsilon;
  // The scale is nearly always the inverse of a root. As a divisor, the root is rounded to float32 only once, and not at
  // all where it is a whole number.
  in.query_scale = kLog2E / static_cast<float>(1.0 / scale);
  in.softcap = softcap;
  in.is_causal = is_causal;
  if (last_seen.element_count() > 0) {
    if (static_cast<int64_t>(last_seen.element_count()) != y_shape[0]) return invalid("last_seen has another shape");
    in.last_seen = last_seen.typed_data();
  }
  if (first_seen.element_count() > 0) {
    if (static_cast<int64_t>(first_seen.element_count()) != y_shape[0]) return invalid("first_seen has another shape");
    in.first_seen = first_seen.typed_data();
  }
  if (rows.dimensions().size() != 2 || table_shape[0] != rows.dimensions()[0]) {
    return invalid("the page table has another shape");
  }
  StepCall step;
  if (!is_causal) step.make_patient();  // an encoder's
  if (ffi::Error error = step.read(rows, num_tiles, y_shape[0]); error.failure()) return error;
  if (KernelClock::shared().is_running()) {
    count_attention(step.rows(), in, pages, static_cast<int64_t>(data.size_bytes() / data.element_count()));
  }
  if (!is_causal && step.rows().tokens().size() >= kManyTokens && step.turn().is_contended()) {
    const StepRows own = step.rows();
    attend(step.pool(), own, in, pages, y->typed_data(), &step.turn());
  } else {
    attend(step.pool(), step.rows(), in, pages, y->typed_data());
  }
  return ffi::Error::Success();
}

}  // namespace

EAGRE_TARGET(eagre_attention, attention, "num_tiles", "num_groups", "scale", "softcap", "epsilon", "is_causal",
             "rounded_bias_scale", "num_picked")

}  // namespace eagre
