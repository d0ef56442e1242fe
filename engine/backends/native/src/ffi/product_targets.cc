// The products and the embedding as targets of XLA's foreign function interface.
//
// Shapes are checked here, so that a mistake in a caller is an error and not a read or write astray. A buffer without
// elements stands for a norm or a bias that a model does not have.
#include <algorithm>
#include <cstring>
#include <vector>

#include "ffi/handler.h"
#include "ffi/stack.h"
#include "ffi/step.h"
#include "ffi/step_adapters.h"
#include "layout/format.h"
#include "layout/packed_rows.h"
#include "products/embedding.h"
#include "products/low_rank.h"
#include "products/product.h"

namespace eagre {
namespace {

// A layer of stacked vectors float32[layers][size], or null where the buffer is empty. `of_what` is for the message.
ffi::Error read_vector(const F32& stack, int64_t layer, int64_t size, const char* of_what, const float*& vector) {
  vector = nullptr;
  if (stack.element_count() == 0) return ffi::Error::Success();
  const auto shape = stack.dimensions();
  if (shape.size() != 2 || shape[1] != size) return invalid(std::string("the ") + of_what + " has another shape");
  if (layer < 0 || layer >= shape[0]) return invalid(std::string("there is no such ") + of_what);
  vector = stack.typed_data() + layer * size;
  return ffi::Error::Success();
}

struct ProductCall {
  const F32& x;
  Stack weights;
  const F32& bias;
  int64_t layer;
  Norm norm{};
  Finish finish = Finish::kNone;
  float scale = 1.0f, softcap = 0.0f;
  bool is_gated = false;
  const F32* addend = nullptr;
  const LowRank* pairs = nullptr;  // of the adapters of the rows; null: none has one
  const RowAdapter* adapters = nullptr;
};

ffi::Error read_norm(const F32& x, int64_t layer, const F32& weights, const F32& bias, int64_t kind, float epsilon,
                     Norm& norm) {
  if (kind < 0 || kind > static_cast<int64_t>(NormKind::kLayer)) return invalid("unknown kind of norm");
  const auto shape = x.dimensions();
  const int64_t size = shape.size() == 2 ? shape[1] : 0;
  norm.kind = static_cast<NormKind>(kind);
  norm.epsilon = epsilon;
  if (ffi::Error error = read_vector(weights, layer, size, "norm", norm.weights); error.failure()) return error;
  if (ffi::Error error = read_vector(bias, layer, size, "norm's bias", norm.bias); error.failure()) {
    return error;
  }
  if (norm.kind != NormKind::kNone && norm.weights == nullptr) return invalid("the norm has no weights");
  return ffi::Error::Success();
}

// Multiplies row from[i] of x into row to[i] of y.
ffi::Error multiply_rows(const StepCall& step, const ProductCall& call, const std::vector<int32_t>& from,
                         const std::vector<int32_t>& to, F32Result& y) {
  Matrix matrix;
  if (ffi::Error error = read_matrix(call.weights, call.layer, matrix); error.failure()) return error;
  const auto x_shape = call.x.dimensions(), y_shape = y->dimensions();
  const int64_t num_inputs = int64_t{matrix.num_groups} * kGroup;
  if (x_shape.size() != 2 || x_shape[1] != num_inputs) return invalid("x has another shape");
  const int64_t parts = call.is_gated ? 2 : 1;
  if (y_shape.size() != 2 || (y_shape[1] + kTile - 1) / kTile != matrix.num_tiles / parts ||
      matrix.num_tiles % parts != 0) {
    return invalid("y has another shape");
  }
  const float* bias;
  if (ffi::Error error = read_vector(call.bias, call.layer, parts * y_shape[1], "bias", bias); error.failure()) {
    return error;
  }
  if (call.addend != nullptr && call.addend->element_count() != static_cast<size_t>(y->element_count())) {
    return invalid("the addend has another shape");
  }
  if (from.empty()) return ffi::Error::Success();
  count_product(matrix, static_cast<int64_t>(from.size()));
  static RowPacker& packed = *new RowPacker;  // the caller holds the pool
  static AdapterSums& sums = *new AdapterSums;
  Matrix asking = matrix;  // for rows
  if (call.pairs != nullptr) {
    if (matrix.num_parts == Matrix::kMostParts) return invalid("a matrix with adapters has too many parts");
    MatrixPart& part = asking.parts[asking.num_parts++] = {};
    part.activations = call.pairs->numbers;
    part.format = part.activations == Activations::kInt8      ? Format::kInt8
                  : part.activations == Activations::kFloat32 ? Format::kFloat32
                                                              : Format::kBfloat16;
  }
  packed.pack(step.pool(), {call.x.typed_data(), from.data(), static_cast<int>(from.size()), call.norm}, asking);
  if (call.pairs != nullptr) sums.compute(step.pool(), packed, *call.pairs, call.adapters);
  multiply(step.pool(), packed, matrix,
           {y->typed_data(), to.data(), y_shape[1], bias, call.finish, call.scale, call.softcap, call.is_gated,
            call.addend == nullptr ? nullptr : call.addend->typed_data(), call.pairs == nullptr ? nullptr : &sums});
  return ffi::Error::Success();
}

// Multiplies so many tokens, while other runs want their turn, as some milliseconds allow, and then the next ones.
ffi::Error multiply_with_pauses(StepCall& step, const ProductCall& call, const std::vector<int32_t>& tokens, F32Result& y) {
  constexpr int64_t kLeastTokens = 64;  // because the weights are read again for each of these parts
  const int64_t num_outputs = y->dimensions()[1] * (call.is_gated ? 2 : 1);
  const int64_t work = std::max<int64_t>(1, call.x.dimensions()[1] * num_outputs), most = kWorkBeforePause / work;
  const int64_t at_once = std::max(kLeastTokens, most / kLeastTokens * kLeastTokens);
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  if (num_tokens <= at_once || !step.turn().is_contended()) return multiply_rows(step, call, tokens, tokens, y);
  const std::vector<int32_t> own = tokens;  // those of the step are whoever's has its turn
  for (int64_t first = 0; first < num_tokens; first += at_once) {
    if (first > 0) step.turn().pause();
    const std::vector<int32_t> some(own.begin() + first, own.begin() + std::min(num_tokens, first + at_once));
    if (ffi::Error error = multiply_rows(step, call, some, some, y); error.failure()) return error;
  }
  return ffi::Error::Success();
}

// Multiplies a step's real tokens. Where no row has an adapter, the pairs are not even looked at.
ffi::Error multiply_step(ProductCall call, const PairStack& stack, const S32& rows, int64_t num_tiles, F32Result& y) {
  if (call.x.dimensions().size() != 2 || y->dimensions().size() != 2 || call.x.dimensions()[0] != y->dimensions()[0]) {
    return invalid("x and y differ in rows");
  }
  StepCall step;
  if (ffi::Error error = step.read(rows, num_tiles, call.x.dimensions()[0]); error.failure()) return error;
  static StepAdapters& adapters = *new StepAdapters;  // the caller holds the pool
  LowRank pairs{};
  if (!stack.is_empty() && have_adapters(rows)) {
    const int64_t num_outputs = y->dimensions()[1] * (call.is_gated ? 2 : 1);
    const ffi::Error error = read_pairs(stack, call.layer, call.x.dimensions()[1], num_outputs, pairs);
    if (error.failure()) return error;
    if (y->dimensions()[1] % kTile != 0) return invalid("outputs with pairs come in whole tiles");
    const int64_t num_slots = stack.ranks.element_count();
    if (ffi::Error wrong = adapters.read(rows, step.rows(), num_slots); wrong.failure()) return wrong;
    call.pairs = &pairs;
    call.adapters = adapters.adapters();
    return multiply_rows(step, call, adapters.tokens(), adapters.tokens(), y);
  }
  return multiply_with_pauses(step, call, step.rows().tokens(), y);
}

// y = activation(norm(x) @ transpose(W) + bias + what adapters add), for a step's real tokens; gated: activation(gate) *
// partner, whose tiles alternate.
ffi::Error norm_product(F32 x, S32 rows, S32 layer, F32 norm, F32 norm_bias, U8 blocks, S32 places, F32 bias,
                        ffi::AnyBuffer down, ffi::AnyBuffer up, S32 ranks, F32Result y, int64_t num_tiles, Tiles tiles,
                        int64_t num_inputs, int64_t norm_kind, float epsilon, int64_t activation, bool is_gated,
                        ffi::Span<const int64_t> ends) {
  ProductCall call{x, {blocks, places, tiles, num_inputs}, bias, layer.typed_data()[0]};
  if (activation < 0 || activation > static_cast<int64_t>(Finish::kQuickGelu)) return invalid("unknown activation");
  call.finish = static_cast<Finish>(activation);
  call.is_gated = is_gated;
  if (ffi::Error error = read_norm(x, call.layer, norm, norm_bias, norm_kind, epsilon, call.norm); error.failure()) {
    return error;
  }
  return multiply_step(call, {down, up, ranks, ends}, rows, num_tiles, y);
}

// y = addend + scale * (x @ transpose(W) + bias + what adapters add), for a step's real tokens; y may be the addend.
ffi::Error add_product(F32 addend, F32 x, S32 rows, S32 layer, U8 blocks, S32 places, F32 bias, ffi::AnyBuffer down,
                       ffi::AnyBuffer up, S32 ranks, F32Result y, int64_t num_tiles, Tiles tiles, int64_t num_inputs,
                       float scale, ffi::Span<const int64_t> ends) {
  ProductCall call{x, {blocks, places, tiles, num_inputs}, bias, layer.typed_data()[0]};
  call.addend = &addend;
  call.finish = scale == 1.0f ? Finish::kNone : Finish::kScaled;
  call.scale = scale;
  return multiply_step(call, {down, up, ranks, ends}, rows, num_tiles, y);
}

// y = norm(x), for a step's real tokens.
ffi::Error norm_rows(F32 x, S32 rows, S32 layer, F32 norm, F32 norm_bias, F32Result y, int64_t num_tiles,
                     int64_t norm_kind, float epsilon) {
  const auto shape = x.dimensions();
  if (shape.size() != 2 || shape[1] % 16 != 0 || y->element_count() != x.element_count()) {
    return invalid("x or y has another shape");
  }
  Norm of_rows{};
  const int64_t index = layer.typed_data()[0], size = shape[1];
  if (ffi::Error error = read_norm(x, index, norm, norm_bias, norm_kind, epsilon, of_rows); error.failure()) return error;
  if (of_rows.kind == NormKind::kNone) return invalid("there is no norm");
  StepCall step;
  if (ffi::Error error = step.read(rows, num_tiles, shape[0]); error.failure()) return error;
  const std::vector<int32_t>& tokens = step.rows().tokens();
  step.pool().run(static_cast<int64_t>(tokens.size()), [&](int64_t task, int) {
    normalise(of_rows, x.typed_data() + tokens[task] * size, size, y->typed_data() + tokens[task] * size);
  });
  return ffi::Error::Success();
}

// Logits of the tokens `sampled`, of which negative ones are padding: z = scale * (norm(x[sampled[i]]) @ transpose(W) +
// bias), or softcap * tanh(z / softcap).
ffi::Error head_product(F32 x, S32 sampled, F32 norm, F32 norm_bias, U8 blocks, S32 places, F32 bias, F32Result y,
                        Tiles tiles, int64_t num_inputs, int64_t norm_kind, float epsilon, float scale, float softcap) {
  ProductCall call{x, {blocks, places, tiles, num_inputs}, bias, 0};
  call.finish = softcap > 0.0f ? Finish::kCapped : scale == 1.0f ? Finish::kNone : Finish::kScaled;
  call.scale = scale;
  call.softcap = softcap;
  if (ffi::Error error = read_norm(x, call.layer, norm, norm_bias, norm_kind, epsilon, call.norm); error.failure()) {
    return error;
  }
  const int64_t count = sampled.element_count();
  if (x.dimensions().size() != 2) return invalid("x has another shape");
  if (y->dimensions().size() != 2 || y->dimensions()[0] != count) return invalid("y has another number of rows");
  const StepCall step;
  static std::vector<int32_t>& from = *new std::vector<int32_t>;  // the caller holds the pool
  static std::vector<int32_t>& to = *new std::vector<int32_t>;
  from.clear();
  to.clear();
  for (int64_t i = 0; i < count; ++i) {
    const int32_t token = sampled.typed_data()[i];
    if (token < 0) continue;
    if (token >= x.dimensions()[0]) return invalid("a sampled token is not among the step's");
    from.push_back(token);
    to.push_back(static_cast<int32_t>(i));
  }
  return multiply_rows(step, call, from, to, y);
}

// y = scale * rows of the embedding, a stack of one matrix, of a step's real tokens.
ffi::Error embed(S32 tokens, S32 rows, U8 blocks, S32 places, F32Result y, int64_t num_tiles, Tiles tiles,
                 int64_t num_inputs, float scale) {
  Matrix matrix;
  if (ffi::Error error = read_matrix({blocks, places, tiles, num_inputs}, 0, matrix); error.failure()) return error;
  const auto shape = y->dimensions();
  const int64_t count = tokens.element_count(), width = int64_t{matrix.num_groups} * kGroup;
  if (shape.size() != 2 || shape[0] != count || shape[1] != width) return invalid("y has another shape");
  StepCall step;
  if (ffi::Error error = step.read(rows, num_tiles, count); error.failure()) return error;
  const std::vector<int32_t>& real = step.rows().tokens();
  step.pool().run(static_cast<int64_t>(real.size()), [&](int64_t i, int) {
    // A row that has failed hands on a token that is none. It reads the last row here and is reported elsewhere.
    const int64_t token = tokens.typed_data()[real[i]], last = matrix.num_tiles * kTile - 1;
    unpack_output(matrix, std::min(std::max<int64_t>(token, 0), last), scale, y->typed_data() + real[i] * width);
  });
  return ffi::Error::Success();
}

}  // namespace

EAGRE_TARGET(eagre_norm, norm_rows, "num_tiles", "norm_kind", "epsilon")
EAGRE_TARGET(eagre_norm_product, norm_product,
             "num_tiles", "tiles", "num_inputs", "norm_kind", "epsilon", "activation", "is_gated", "ends")

EAGRE_TARGET(eagre_add_product, add_product, "num_tiles", "tiles", "num_inputs", "scale", "ends")

EAGRE_TARGET(eagre_head_product, head_product, "tiles", "num_inputs", "norm_kind", "epsilon", "scale", "softcap")

EAGRE_TARGET(eagre_embed, embed, "num_tiles", "tiles", "num_inputs", "scale")

}  // namespace eagre
