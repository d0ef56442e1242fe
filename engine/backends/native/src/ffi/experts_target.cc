// A layer's experts as a target of XLA's foreign function interface.
#include <cstdint>
#include <cstring>
#include <vector>

#include "ffi/handler.h"
#include "ffi/stack.h"
#include "ffi/step.h"
#include "products/experts.h"

namespace eagre {
namespace {

// A bias of each entry of a stack, float32[entries][size], or a buffer without elements.
struct Biases {
  const F32& all;
  int64_t size;

  bool has(int64_t num_entries) const {
    return all.element_count() == 0 || static_cast<int64_t>(all.element_count()) >= num_entries * size;
  }
  const float* at(int64_t entry) const { return all.element_count() == 0 ? nullptr : all.typed_data() + entry * size; }
};

// The matrices and biases of the experts that a step's tokens pick.
ffi::Error read_experts(const Stack& gate_up, const Stack& down, const Biases& gate_up_biases, const Biases& down_biases,
                        int64_t first, const ExpertRows& rows, std::vector<Expert>& experts, std::vector<bool>& is_read) {
  const int64_t num_experts = static_cast<int64_t>(experts.size());
  for (int32_t token : rows.tokens) {
    for (int i = 0; i < rows.num_picked; ++i) {
      const int32_t pick = rows.picks[int64_t{token} * rows.num_picked + i];
      if (pick < 0 || pick >= num_experts) return invalid("there is no such expert");
      if (is_read[pick]) continue;
      is_read[pick] = true;
      Expert& expert = experts[pick];
      if (ffi::Error error = read_matrix(gate_up, first + pick, expert.gate_up); error.failure()) return error;
      if (ffi::Error error = read_matrix(down, first + pick, expert.down); error.failure()) return error;
      if (expert.gate_up.num_groups * int64_t{kGroup} != rows.hidden ||
          expert.gate_up.num_tiles * kTile != rows.inner * (rows.is_gated ? 2 : 1) || expert.down.num_groups * int64_t{kGroup} != rows.inner ||
          expert.down.num_tiles * kTile != rows.hidden) {
        return invalid("an expert has another shape");
      }
      if (!gate_up_biases.has(first + pick + 1) || !down_biases.has(first + pick + 1)) {
        return invalid("biases of experts have another shape");
      }
      expert.gate_up_bias = gate_up_biases.at(first + pick);
      expert.down_bias = down_biases.at(first + pick);
    }
  }
  return ffi::Error::Success();
}

// y = addend + what the experts of each real token make of its row of x; y may be the addend.
ffi::Error experts(F32 addend, F32 x, S32 rows, S32 layer, S32 picks, F32 shares, U8 gate_up, S32 gate_up_places, U8 down,
                   S32 down_places, F32 gate_up_bias, F32 down_bias, F32Result y, int64_t num_tiles, Tiles gate_up_tiles,
                   Tiles down_tiles, int64_t num_inputs, int64_t num_inner, int64_t num_experts, int64_t activation,
                   bool is_gated, float scale, float softcap) {
  const auto x_shape = x.dimensions(), y_shape = y->dimensions(), picks_shape = picks.dimensions();
  const bool is_limited = activation == static_cast<int64_t>(Finish::kLimited);
  if (activation < 0 || (activation > static_cast<int64_t>(Finish::kClamped) && !is_limited)) {
    return invalid("unknown activation");
  }
  if (num_experts < 1) return invalid("there are no experts");
  if (x_shape.size() != 2 || x_shape[1] != num_inputs) return invalid("x has another shape");
  if (y_shape.size() != 2 || y_shape[0] != x_shape[0] || y_shape[1] != x_shape[1] ||
      addend.element_count() != y->element_count()) {
    return invalid("y or the addend has another shape");
  }
  if (picks_shape.size() != 2 || picks_shape[0] != x_shape[0] || shares.element_count() != picks.element_count()) {
    return invalid("the picks have another shape");
  }
  StepCall step;
  if (ffi::Error error = step.read(rows, num_tiles, x_shape[0]); error.failure()) return error;
  const std::vector<int32_t>& tokens = step.rows().tokens();
  const ExpertRows of_step{x.typed_data(), y->typed_data(), num_inputs, num_inner, tokens, picks.typed_data(),
                           shares.typed_data(), static_cast<int>(picks_shape[1]), is_gated, static_cast<Finish>(activation), scale, softcap};
  static std::vector<Expert>& read = *new std::vector<Expert>;  // the caller holds the pool
  static std::vector<bool>& is_read = *new std::vector<bool>;
  read.resize(num_experts);
  is_read.assign(num_experts, false);
  if (ffi::Error error = read_experts({gate_up, gate_up_places, gate_up_tiles, num_inputs},
                                      {down, down_places, down_tiles, num_inner}, {gate_up_bias, (is_gated ? 2 : 1) * num_inner},
                                      {down_bias, num_inputs}, layer.typed_data()[0] * num_experts, of_step, read, is_read);
      error.failure()) {
    return error;
  }
  if (y->typed_data() != addend.typed_data()) {
    std::memcpy(y->typed_data(), addend.typed_data(), addend.size_bytes());
  }
  add_experts(step.pool(), of_step, read);
  return ffi::Error::Success();
}

}  // namespace

EAGRE_TARGET(eagre_add_experts, experts,
             "num_tiles", "gate_up_tiles", "down_tiles", "num_inputs", "num_inner", "num_experts", "activation",
             "is_gated", "scale", "softcap")

}  // namespace eagre
