// The convolution and the state space of Mamba's layers as targets of XLA's foreign function interface.
#include <cstdint>
#include <vector>

#include "ffi/handler.h"
#include "ffi/recurrent_layer.h"
#include "ffi/step.h"
#include "recurrence/convolution.h"
#include "recurrence/state_space.h"

namespace eagre {
namespace {

std::vector<RecurrentRow>& kept_rows() {
  static std::vector<RecurrentRow>& rows = *new std::vector<RecurrentRow>;  // the caller holds the pool
  return rows;
}

ffi::Error convolution(F32 x, S32 rows, S32 layer, F32 weights, F32 bias, F32 inputs, F32Result y, F32Result inputs_out,
                       int64_t num_tiles, int64_t first, bool has_silu) {
  if (inputs.untyped_data() != inputs_out->untyped_data()) return invalid("the states must be updated in place");
  const int64_t index = layer.typed_data()[0];
  const auto kept = inputs.dimensions(), x_shape = x.dimensions();
  if (kept.size() != 4 || index < 0 || index >= kept[0]) return invalid("there is no such layer of inputs");
  Convolution in{};
  in.first = first;
  in.has_silu = has_silu;
  in.channels = kept[3];
  in.kernel = kept[2] + 1;
  if (in.kernel < 2 || in.kernel > kLargestKernel || in.channels < 1 || in.channels % kChannelMultiple != 0) {
    return invalid("a convolution sees 2 to 64 tokens, of channels in multiples of 16");
  }
  if (x_shape.size() != 2 || first < 0 || first > x_shape[1] || in.channels > x_shape[1] - first) {
    return invalid("x has another shape");
  }
  in.width = x_shape[1];
  if (static_cast<int64_t>(y->element_count()) != x_shape[0] * in.channels) return invalid("y has another shape");
  if (ffi::Error error = of_layer(weights, index, in.kernel * in.channels, in.weights); error.failure()) return error;
  if (ffi::Error error = of_layer_or_none(bias, index, in.channels, in.bias); error.failure()) return error;
  in.x = x.typed_data();
  in.inputs = inputs.typed_data() + index * kept[1] * kept[2] * kept[3];
  StepCall step;
  if (ffi::Error error = step.read(rows, num_tiles, x_shape[0]); error.failure()) return error;
  if (ffi::Error error = read_rows(rows, step.rows(), kept[1], kept_rows()); error.failure()) return error;
  run_convolution(step.pool(), kept_rows(), sequences_of(kept_rows()), in, y->typed_data());
  return ffi::Error::Success();
}

ffi::Error state_space(F32 mixed, F32 gates, F32 time_steps, S32 rows, S32 layer, F32 decay, F32 time_bias, F32 skip,
                       F32 norm, F32 matrices, F32Result y, F32Result matrices_out, int64_t num_tiles,
                       int64_t num_groups, int64_t first_gate, bool is_by_channel, bool norms_first, float least_step,
                       float most_step, float epsilon) {
  if (matrices.untyped_data() != matrices_out->untyped_data()) return invalid("the states must be updated in place");
  const int64_t index = layer.typed_data()[0];
  const auto shape = matrices.dimensions(), x_shape = mixed.dimensions(), gates_shape = gates.dimensions();
  if (shape.size() != 5 || index < 0 || index >= shape[0]) return invalid("there is no such layer of states");
  StateSpace in{};
  in.num_heads = shape[2];
  in.state_size = shape[3];
  in.head_dim = shape[4];
  in.num_groups = num_groups;
  for (const int64_t size : {in.state_size, in.head_dim}) {
    if (size < 1 || size % kStateHeadMultiple != 0 || size > kLargestStateHead) {
      return invalid("heads of a state space, and their states, are of 16, 32, ... 256 features");
    }
  }
  if (num_groups < 1 || in.num_heads < 1 || in.num_heads % num_groups != 0) {
    return invalid("heads of a state space share groups evenly");
  }
  if (x_shape.size() != 2 || x_shape[1] != in.mixed_width()) return invalid("mixed has another shape");
  in.num_tokens = x_shape[0];
  if (gates_shape.size() != 2 || gates_shape[0] != in.num_tokens || first_gate < 0 || first_gate > gates_shape[1] ||
      in.value_size() > gates_shape[1] - first_gate) {
    return invalid("gates have another shape");
  }
  in.gates_width = gates_shape[1];
  in.first_gate = first_gate;
  in.is_by_channel = is_by_channel;
  in.norms_first = norms_first;
  if (static_cast<int64_t>(time_steps.element_count()) != in.num_tokens * in.num_steps()) {
    return invalid("time steps have another shape");
  }
  if (static_cast<int64_t>(y->element_count()) != in.num_tokens * in.value_size()) {
    return invalid("y has another shape");
  }
  const int64_t num_decays = is_by_channel ? in.state_size * in.value_size() : in.num_heads;
  if (ffi::Error error = of_layer(decay, index, num_decays, in.decay); error.failure()) return error;
  if (ffi::Error error = of_layer(time_bias, index, in.num_steps(), in.time_bias); error.failure()) return error;
  if (ffi::Error error = of_layer(skip, index, in.num_steps(), in.skip); error.failure()) return error;
  if (ffi::Error error = of_layer_or_none(norm, index, in.value_size(), in.norm); error.failure()) return error;
  in.mixed = mixed.typed_data();
  in.gates = gates.typed_data();
  in.time_steps = time_steps.typed_data();
  in.least_step = least_step;
  in.most_step = most_step;
  in.epsilon = epsilon;
  in.matrices = matrices.typed_data() + index * shape[1] * in.num_heads * in.state_size * in.head_dim;
  StepCall step;
  if (ffi::Error error = step.read(rows, num_tiles, in.num_tokens); error.failure()) return error;
  if (ffi::Error error = read_rows(rows, step.rows(), shape[1], kept_rows()); error.failure()) return error;
  run_state_space(step.pool(), kept_rows(), in, y->typed_data());
  return ffi::Error::Success();
}

}  // namespace

EAGRE_TARGET(eagre_convolution, convolution, "num_tiles", "first", "has_silu")
EAGRE_TARGET(eagre_state_space, state_space, "num_tiles", "num_groups", "first_gate", "is_by_channel", "norms_first",
             "least_step", "most_step", "epsilon")

}  // namespace eagre
