// The recurrence of gated delta-nets as a target of XLA's foreign function interface.
#include <cstdint>
#include <vector>

#include "ffi/handler.h"
#include "ffi/recurrent_layer.h"
#include "ffi/step.h"
#include "recurrence/convolution.h"
#include "recurrence/gated_delta.h"

namespace eagre {
namespace {

ffi::Error gated_delta(F32 qkvz, F32 beta, F32 alpha, S32 rows, S32 layer, F32 convolution, F32 decay, F32 time_bias,
                       F32 norm, F32 inputs, F32 matrices, F32Result y, F32Result inputs_out, F32Result matrices_out,
                       int64_t num_tiles, int64_t num_key_heads, bool is_tiled, bool has_row_decays, bool has_sigmoid_gates,
                       float epsilon, float beta_scale) {
  if (inputs.untyped_data() != inputs_out->untyped_data() || matrices.untyped_data() != matrices_out->untyped_data()) {
    return invalid("the states must be updated in place");
  }
  const int64_t index = layer.typed_data()[0];
  const auto shape = matrices.dimensions(), kept = inputs.dimensions(), x_shape = qkvz.dimensions();
  if (shape.size() != 5 || kept.size() != 4 || kept[0] != shape[0] || kept[1] != shape[1]) {
    return invalid("the states have another shape");
  }
  if (index < 0 || index >= shape[0]) return invalid("there is no such layer");
  GatedDelta in{};
  in.num_heads = shape[2];
  in.key_dim = shape[3];
  in.value_dim = shape[4];
  in.num_key_heads = num_key_heads;
  in.kernel = kept[2] + 1;
  for (const int64_t size : {in.key_dim, in.value_dim}) {
    if (size % kDeltaHeadMultiple != 0 || size < 1 || size > kLargestDeltaHead) {
      return invalid("heads of a recurrence are of 16, 32, ... 256 features");
    }
  }
  if (num_key_heads < 1 || in.num_heads % num_key_heads != 0 || in.kernel < 2 || in.kernel > kLargestKernel ||
      kept[3] != in.num_channels()) {
    return invalid("the states have another shape");
  }
  if (x_shape.size() != 2 || x_shape[1] != in.num_channels() + in.value_size()) {
    return invalid("qkvz has another shape");
  }
  in.num_tokens = x_shape[0];
  const int64_t num_gates = in.num_tokens * in.num_heads;
  if (static_cast<int64_t>(beta.element_count()) != num_gates ||
      static_cast<int64_t>(alpha.element_count()) != num_gates * (has_row_decays ? in.key_dim : 1)) {
    return invalid("beta or alpha has another shape");
  }
  if (static_cast<int64_t>(y->element_count()) != in.num_tokens * in.value_size()) {
    return invalid("y has another shape");
  }
  if (ffi::Error error = of_layer(convolution, index, in.kernel * in.num_channels(), in.convolution); error.failure()) {
    return error;
  }
  if (ffi::Error error = of_layer(decay, index, in.num_heads, in.decay); error.failure()) return error;
  if (ffi::Error error = of_layer(time_bias, index, in.num_heads, in.time_bias); error.failure()) return error;
  if (ffi::Error error = of_layer(norm, index, in.value_dim, in.norm); error.failure()) return error;
  in.qkvz = qkvz.typed_data();
  in.beta = beta.typed_data();
  in.alpha = alpha.typed_data();
  in.epsilon = epsilon;
  in.beta_scale = beta_scale;
  in.is_tiled = is_tiled;
  in.has_row_decays = has_row_decays;
  in.has_sigmoid_gates = has_sigmoid_gates;
  in.inputs = inputs.typed_data() + index * kept[1] * kept[2] * kept[3];
  in.matrices = matrices.typed_data() + index * shape[1] * in.num_heads * in.key_dim * in.value_dim;
  StepCall step;
  if (ffi::Error error = step.read(rows, num_tiles, in.num_tokens); error.failure()) return error;
  static std::vector<RecurrentRow>& found = *new std::vector<RecurrentRow>;  // the caller holds the pool
  if (ffi::Error error = read_rows(rows, step.rows(), shape[1], found); error.failure()) return error;
  run_gated_delta(step.pool(), found, in, y->typed_data());
  return ffi::Error::Success();
}

}  // namespace

EAGRE_TARGET(eagre_gated_delta, gated_delta, "num_tiles", "num_key_heads", "is_tiled", "has_row_decays",
             "has_sigmoid_gates", "epsilon", "beta_scale")

}  // namespace eagre
