// The kernels as targets of XLA's foreign function interface.
//
// Shapes are checked here, so that a mistake in a caller is an error and not a write astray.
#include <mutex>
#include <string>
#include <vector>

#include "products/activations.h"
#include "sampling/argmax.h"
#include "attention/attention.h"
#include "products/embedding.h"
#include "products/format.h"
#include "border/handler.h"
#include "runtime/pool.h"
#include "products/product.h"
#include "runtime/step_rows.h"

namespace eagre {
namespace {

// A layer of stacked matrices uint8[layers][tiles][groups][block bytes].
ffi::Error read_matrix(const U8& blocks, int64_t layer, int64_t format_number, Matrix& matrix) {
  if (format_number < 0 || format_number > static_cast<int64_t>(Format::kInt4Min)) return invalid("unknown format");
  const Format format = static_cast<Format>(format_number);
  const auto shape = blocks.dimensions();
  if (shape.size() != 4 || shape[3] != static_cast<int64_t>(block_bytes(format))) return invalid("a matrix has another shape");
  if (layer < 0 || layer >= shape[0]) return invalid("there is no such layer");
  const int64_t bytes = shape[1] * shape[2] * shape[3];
  matrix = {format, reinterpret_cast<const std::byte*>(blocks.typed_data()) + layer * bytes, shape[1],
            static_cast<int>(shape[2])};
  return ffi::Error::Success();
}

ffi::Error read_rows(const S32& rows, int64_t num_tiles, int64_t num_tokens, StepRows& step) {
  const auto shape = rows.dimensions();
  if (shape.size() != 2 || shape[1] < 2 || num_tiles < 0 || num_tiles > shape[0]) return invalid("rows have another shape");
  const int64_t single = shape[0] - num_tiles;
  if (num_tokens < single || (num_tiles == 0 ? num_tokens != single : (num_tokens - single) % num_tiles != 0)) {
    return invalid("the number of tokens does not fit the rows");
  }
  step.read(rows.typed_data(), shape[0], shape[1], num_tiles, num_tokens);
  return ffi::Error::Success();
}

// Kept from call to call, by whoever holds the pool.
struct Kept {
  StepRows rows;
  Activations activations;
  std::vector<int32_t> from, to;
};

Kept& kept() {
  static Kept* memory = new Kept;
  return *memory;
}

struct ProductCall {
  const F32& x;
  const U8& blocks;
  int64_t layer, format;
  const float* norm = nullptr;  // [layers][inputs]
  int64_t norm_layers = 0;
  float epsilon = 0.0f;
  const F32* addend = nullptr;
  bool is_gated = false;
};

// Multiplies row from[i] of x into row to[i] of y.
ffi::Error multiply_rows(Pool& pool, const ProductCall& call, const std::vector<int32_t>& from,
                         const std::vector<int32_t>& to, F32Result& y) {
  Matrix matrix;
  if (ffi::Error error = read_matrix(call.blocks, call.layer, call.format, matrix); error.failure()) return error;
  const auto x_shape = call.x.dimensions(), y_shape = y->dimensions();
  const int64_t num_inputs = int64_t{matrix.num_groups} * kGroup;
  if (x_shape.size() != 2 || x_shape[1] != num_inputs) return invalid("x has another shape");
  const int64_t num_tiles = call.is_gated ? matrix.num_tiles / 2 : matrix.num_tiles;
  if (y_shape.size() != 2 || (y_shape[1] + kTile - 1) / kTile != num_tiles || (call.is_gated && matrix.num_tiles % 2 != 0)) {
    return invalid("y has another shape");
  }
  if (call.norm != nullptr && call.layer >= call.norm_layers) return invalid("there is no such norm");
  if (call.addend != nullptr && call.addend->element_count() != static_cast<size_t>(y->element_count())) return invalid("the addend has another shape");
  if (from.empty()) return ffi::Error::Success();
  Activations& activations = kept().activations;
  const RowSource source{call.x.typed_data(), from.data(), static_cast<int>(from.size()),
                         call.norm == nullptr ? nullptr : call.norm + call.layer * num_inputs, call.epsilon};
  activations.pack(pool, source, static_cast<int>(num_inputs), matrix.format);
  multiply(pool, activations, matrix,
           {y->typed_data(), to.data(), call.addend == nullptr ? nullptr : call.addend->typed_data(),
            call.is_gated, y_shape[1]});
  return ffi::Error::Success();
}

ffi::Error multiply_step(const ProductCall& call, const S32& rows, int64_t num_tiles, F32Result& y) {
  Pool& pool = Pool::shared();
  const std::lock_guard<std::mutex> lock(pool.caller_mutex());
  StepRows& step = kept().rows;
  if (call.x.dimensions().size() != 2 || y->dimensions().size() != 2 || call.x.dimensions()[0] != y->dimensions()[0]) {
    return invalid("x and y differ in rows");
  }
  if (ffi::Error error = read_rows(rows, num_tiles, call.x.dimensions()[0], step); error.failure()) return error;
  return multiply_rows(pool, call, step.tokens(), step.tokens(), y);
}

ffi::Error norm_of(const F32& norm, ProductCall& call) {
  const auto shape = norm.dimensions();
  if (shape.size() != 2 || call.x.dimensions().size() != 2 || shape[1] != call.x.dimensions()[1]) {
    return invalid("the norm has another shape");
  }
  call.norm = norm.typed_data();
  call.norm_layers = shape[0];
  return ffi::Error::Success();
}

// y = norm(x) @ transpose(W), for a step's real tokens; gated: silu(gate) * partner of alternating tiles.
ffi::Error norm_product(F32 x, S32 rows, S32 layer, F32 norm, U8 blocks, F32Result y, int64_t num_tiles, int64_t format,
                        float epsilon, bool is_gated) {
  ProductCall call{x, blocks, layer.typed_data()[0], format};
  call.epsilon = epsilon;
  call.is_gated = is_gated;
  if (ffi::Error error = norm_of(norm, call); error.failure()) return error;
  return multiply_step(call, rows, num_tiles, y);
}

// y = addend + x @ transpose(W), for a step's real tokens; y may be the addend.
ffi::Error add_product(F32 addend, F32 x, S32 rows, S32 layer, U8 blocks, F32Result y, int64_t num_tiles, int64_t format) {
  ProductCall call{x, blocks, layer.typed_data()[0], format};
  call.addend = &addend;
  return multiply_step(call, rows, num_tiles, y);
}

// Logits of the tokens `sampled`, of which negative ones are padding: y[i] = norm(x[sampled[i]]) @ transpose(W).
ffi::Error head_product(F32 x, S32 sampled, F32 norm, U8 blocks, F32Result y, int64_t format,
                        float epsilon) {
  ProductCall call{x, blocks, 0, format};
  call.epsilon = epsilon;
  if (ffi::Error error = norm_of(norm, call); error.failure()) return error;
  Pool& pool = Pool::shared();
  const std::lock_guard<std::mutex> lock(pool.caller_mutex());
  Kept& memory = kept();
  memory.from.clear();
  memory.to.clear();
  const int64_t count = sampled.element_count();
  if (y->dimensions().size() != 2 || y->dimensions()[0] != count) return invalid("y has another number of rows");
  for (int64_t i = 0; i < count; ++i) {
    const int32_t token = sampled.typed_data()[i];
    if (token < 0) continue;
    if (token >= x.dimensions()[0]) return invalid("a sampled token is not among the step's");
    memory.from.push_back(token);
    memory.to.push_back(static_cast<int32_t>(i));
  }
  return multiply_rows(pool, call, memory.from, memory.to, y);
}

// Rows of the embedding, uint8[1][tiles][groups][block bytes], of a step's real tokens.
ffi::Error embed(S32 tokens, S32 rows, U8 blocks, F32Result y, int64_t num_tiles, int64_t format) {
  Matrix matrix;
  if (ffi::Error error = read_matrix(blocks, 0, format, matrix); error.failure()) return error;
  const auto shape = y->dimensions();
  const int64_t count = tokens.element_count(), width = int64_t{matrix.num_groups} * kGroup;
  if (shape.size() != 2 || shape[0] != count || shape[1] != width) return invalid("y has another shape");
  Pool& pool = Pool::shared();
  const std::lock_guard<std::mutex> lock(pool.caller_mutex());
  StepRows& step = kept().rows;
  if (ffi::Error error = read_rows(rows, num_tiles, count, step); error.failure()) return error;
  const std::vector<int32_t>& real = step.tokens();
  pool.run(static_cast<int64_t>(real.size()), [&](int64_t i, int) {
    // A token that is none, as a row that failed hands on, reads the last row and is reported elsewhere.
    const int64_t token = tokens.typed_data()[real[i]], last = matrix.num_tiles * kTile - 1;
    unpack_output(matrix, std::min(std::max<int64_t>(token, 0), last), y->typed_data() + real[i] * width);
  });
  return ffi::Error::Success();
}

ffi::Error attention(F32 qkv, F32 rotations, S32 rows, S32 page_table, S32 layer, ffi::AnyBuffer data, ffi::AnyBuffer scales,
                     F32Result y, ffi::Result<ffi::AnyBuffer> data_out, ffi::Result<ffi::AnyBuffer> scales_out,
                     int64_t num_tiles, int64_t window) {
  const auto shape = data.dimensions();  // [layer, page, 2, head, token, feature]
  if (shape.size() != 6 || shape[2] != 2) return invalid("the pages have another shape");
  if (data.untyped_data() != data_out->untyped_data() || scales.untyped_data() != scales_out->untyped_data()) {
    return invalid("the pages must be updated in place");
  }
  Pages pages{};
  switch (data.element_type()) {
    case ffi::F32: pages.type = PageType::kFloat32; break;
    case ffi::BF16: pages.type = PageType::kBfloat16; break;
    case ffi::S8: pages.type = PageType::kInt8; break;
    default: return invalid("pages are of float32, bfloat16 or int8");
  }
  pages.num_pages = shape[1];
  pages.num_heads = shape[3];
  pages.page_size = shape[4];
  pages.head_dim = shape[5];
  const int64_t index = layer.typed_data()[0], vectors = pages.num_pages * pages.page_size * 2 * pages.num_heads;
  if (index < 0 || index >= shape[0]) return invalid("there is no such layer");
  if (pages.head_dim % 16 != 0 || pages.head_dim > kLargestHead) return invalid("heads are of 16, 32, ... 256 features");
  const int64_t item = pages.type == PageType::kFloat32 ? 4 : pages.type == PageType::kBfloat16 ? 2 : 1;
  pages.data = static_cast<std::byte*>(data.untyped_data()) + index * vectors * pages.head_dim * item;
  if (pages.type == PageType::kInt8) {
    if (static_cast<int64_t>(scales.element_count()) != shape[0] * vectors) return invalid("the scales have another shape");
    pages.scales = static_cast<float*>(scales.untyped_data()) + index * vectors;
  }
  const auto y_shape = y->dimensions(), qkv_shape = qkv.dimensions(), table_shape = page_table.dimensions();
  if (y_shape.size() != 2 || y_shape[1] % pages.head_dim != 0) return invalid("y has another shape");
  const int64_t num_heads = y_shape[1] / pages.head_dim;
  if (num_heads % pages.num_heads != 0 || qkv_shape.size() != 2 || qkv_shape[0] != y_shape[0] ||
      qkv_shape[1] != (num_heads + 2 * pages.num_heads) * pages.head_dim) {
    return invalid("qkv has another shape");
  }
  if (rotations.dimensions().size() != 2 || rotations.dimensions()[0] != y_shape[0] || rotations.dimensions()[1] != pages.head_dim) {
    return invalid("rotations have another shape");
  }
  if (table_shape.size() != 2 || table_shape[0] != rows.dimensions()[0]) return invalid("the page table has another shape");
  Pool& pool = Pool::shared();
  const std::lock_guard<std::mutex> lock(pool.caller_mutex());
  StepRows& step = kept().rows;
  if (ffi::Error error = read_rows(rows, num_tiles, y_shape[0], step); error.failure()) return error;
  attend(pool, step, {qkv.typed_data(), rotations.typed_data(), page_table.typed_data(), table_shape[1], num_heads, window},
         pages, y->typed_data());
  return ffi::Error::Success();
}

// Leaves its result as it is.
ffi::Error empty(ffi::Result<ffi::AnyBuffer>) { return ffi::Error::Success(); }

// The best token of each row whose slot is below num_slots.
ffi::Error argmax_rows(F32 logits, S32 slots, ffi::ResultBuffer<ffi::S32> tokens, int64_t num_slots) {
  const auto shape = logits.dimensions();
  if (shape.size() != 2 || static_cast<int64_t>(slots.element_count()) != shape[0] ||
      static_cast<int64_t>(tokens->element_count()) != shape[0]) {
    return invalid("logits, slots and tokens differ in rows");
  }
  Pool& pool = Pool::shared();
  const std::lock_guard<std::mutex> lock(pool.caller_mutex());
  argmax(pool, logits.typed_data(), shape[0], shape[1], slots.typed_data(), num_slots, tokens->typed_data());
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(eagre_argmax, Guarded<argmax_rows>::call,
                              ffi::Ffi::Bind()
                                  .Arg<F32>().Arg<S32>().Ret<ffi::Buffer<ffi::S32>>()
                                  .Attr<int64_t>("num_slots"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(eagre_empty, Guarded<empty>::call, ffi::Ffi::Bind().Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(eagre_norm_product, Guarded<norm_product>::call,
                              ffi::Ffi::Bind()
                                  .Arg<F32>().Arg<S32>().Arg<S32>().Arg<F32>().Arg<U8>().Ret<F32>()
                                  .Attr<int64_t>("num_tiles").Attr<int64_t>("format")
                                  .Attr<float>("epsilon").Attr<bool>("is_gated"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(eagre_add_product, Guarded<add_product>::call,
                              ffi::Ffi::Bind()
                                  .Arg<F32>().Arg<F32>().Arg<S32>().Arg<S32>().Arg<U8>().Ret<F32>()
                                  .Attr<int64_t>("num_tiles").Attr<int64_t>("format"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(eagre_head_product, Guarded<head_product>::call,
                              ffi::Ffi::Bind()
                                  .Arg<F32>().Arg<S32>().Arg<F32>().Arg<U8>().Ret<F32>()
                                  .Attr<int64_t>("format").Attr<float>("epsilon"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(eagre_embed, Guarded<embed>::call,
                              ffi::Ffi::Bind()
                                  .Arg<S32>().Arg<S32>().Arg<U8>().Ret<F32>()
                                  .Attr<int64_t>("num_tiles").Attr<int64_t>("format"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(eagre_attention, Guarded<attention>::call,
                              ffi::Ffi::Bind()
                                  .Arg<F32>().Arg<F32>().Arg<S32>().Arg<S32>().Arg<S32>()
                                  .Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Ret<F32>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("num_tiles").Attr<int64_t>("window"));

// Tells whether the library belongs to the sources that are there.
#ifndef EAGRE_SOURCES
#define EAGRE_SOURCES "unknown"
#endif
extern "C" const char* eagre_sources() { return EAGRE_SOURCES; }

}  // namespace eagre
