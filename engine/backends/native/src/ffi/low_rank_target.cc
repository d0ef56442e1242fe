// The low-rank products of adapters as a target of XLA's foreign function interface.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ffi/handler.h"
#include "ffi/step.h"
#include "products/low_rank.h"
#include "runtime/adapter_rows.h"

namespace eagre {
namespace {

// The real tokens of a step, each with the adapter of its row; 0 in that column is none.
ffi::Error read_adapters(const S32& rows, const StepRows& step, int64_t num_slots, std::vector<AdaptedToken>& found) {
  const int64_t stride = rows.dimensions()[1];
  if (stride <= kAdapterScale) return invalid("rows have no adapters");
  found.clear();
  for (const StepRow& row : step.rows()) {
    const int32_t* columns = rows.typed_data() + row.row * stride;
    const int32_t slot = columns[kAdapter] - 1;
    if (slot >= num_slots) return invalid("there is no such adapter");
    float scale;
    std::memcpy(&scale, columns + kAdapterScale, sizeof scale);
    for (int32_t i = 0; i < row.num_tokens; ++i) found.push_back({row.first_token + i, std::max(slot, -1), scale});
  }
  return ffi::Error::Success();
}

// The pairs of one layer; invalid where their shapes differ from those of the step.
template <class Number>
ffi::Error multiply(const S32& rows, const S32& layer, const ffi::AnyBuffer& down, const ffi::AnyBuffer& up,
                    const S32& ranks, const F32& x, const F32Result& y, int64_t num_tiles,
                    ffi::Span<const int64_t> ends) {
  const auto x_shape = x.dimensions(), y_shape = y->dimensions(), shape = down.dimensions(), of_up = up.dimensions();
  if (shape.size() != 4 || of_up.size() != 4 || shape[0] != of_up[0] || shape[1] != of_up[1] ||
      static_cast<int64_t>(ranks.element_count()) != shape[0]) {
    return invalid("the pairs have other shapes");
  }
  LowRank<Number> pairs{};
  pairs.num_parts = static_cast<int64_t>(ends.size());
  pairs.ends = ends.begin();
  pairs.rank = of_up[2];
  pairs.num_inputs = shape[2];
  pairs.num_outputs = of_up[3];
  if (pairs.rank < 1 || pairs.rank % kRankMultiple != 0 || shape[3] != pairs.num_parts * pairs.rank ||
      pairs.num_inputs % 16 != 0) {
    return invalid("the pairs have other shapes");
  }
  int64_t before = 0;
  for (int64_t part = 0; part < pairs.num_parts; ++part) {
    if (ends[part] % 16 != 0 || ends[part] <= before) return invalid("the parts have other sizes");
    before = ends[part];
  }
  if (before != pairs.num_outputs) return invalid("the parts have other sizes");
  if (x_shape.size() != 2 || y_shape.size() != 2 || x_shape[0] != y_shape[0] || x_shape[1] != pairs.num_inputs ||
      y_shape[1] != pairs.num_outputs) {
    return invalid("x or y has another shape");
  }
  const int64_t index = layer.typed_data()[0];
  if (index < 0 || index >= shape[1]) return invalid("there is no such layer");
  pairs.down = static_cast<const Number*>(down.untyped_data()) + index * shape[2] * shape[3];
  pairs.up = static_cast<const Number*>(up.untyped_data()) + index * of_up[2] * of_up[3];
  pairs.down_stride = shape[1] * shape[2] * shape[3];
  pairs.up_stride = of_up[1] * of_up[2] * of_up[3];
  pairs.ranks = ranks.typed_data();
  for (int64_t slot = 0; slot < shape[0]; ++slot) {
    if (pairs.ranks[slot] < 0 || pairs.ranks[slot] > pairs.rank) return invalid("an adapter has another rank");
  }
  StepCall step;
  if (ffi::Error error = step.read(rows, num_tiles, x_shape[0]); error.failure()) return error;
  if (!has_adapters(rows.typed_data(), rows.dimensions()[0], rows.dimensions()[1])) return ffi::Error::Success();
  static std::vector<AdaptedToken>& tokens = *new std::vector<AdaptedToken>;  // the caller holds the pool
  if (ffi::Error error = read_adapters(rows, step.rows(), shape[0], tokens); error.failure()) return error;
  multiply_low_rank(step.pool(), tokens, pairs, x.typed_data(), y->typed_data());
  return ffi::Error::Success();
}

// y = up(down(x)) for a step's real tokens, with the pairs of their adapters; 0 where there is none. Of a step in which no
// row has one, y stays as it is.
ffi::Error low_rank(F32 x, S32 rows, S32 layer, ffi::AnyBuffer down, ffi::AnyBuffer up, S32 ranks, F32Result y,
                    int64_t num_tiles, ffi::Span<const int64_t> ends) {
  if (down.element_type() != up.element_type()) return invalid("the pairs have two types");
  if (down.element_type() == ffi::F32) return multiply<float>(rows, layer, down, up, ranks, x, y, num_tiles, ends);
  if (down.element_type() == ffi::BF16) return multiply<uint16_t>(rows, layer, down, up, ranks, x, y, num_tiles, ends);
  return invalid("the pairs have another type");
}

}  // namespace

EAGRE_TARGET(eagre_low_rank, low_rank, "num_tiles", "ends")

}  // namespace eagre
