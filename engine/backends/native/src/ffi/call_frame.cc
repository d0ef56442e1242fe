#include "ffi/call_frame.h"

#include <cstring>

namespace eagre::ffi {
namespace {

size_t size_of(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_S64:
    case XLA_FFI_DataType_U64:
    case XLA_FFI_DataType_F64: return 8;
    case F32:
    case S32:
    case U32: return 4;
    case BF16:
    case XLA_FFI_DataType_F16: return 2;
    default: return 1;
  }
}

}  // namespace

XLA_FFI_Error* Error::release(const XLA_FFI_Api* api) const {
  if (!failure()) return nullptr;
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message_.c_str(), code_};
  return api->XLA_FFI_Error_Create(&args);
}

size_t AnyBuffer::element_count() const {
  size_t count = 1;
  for (int64_t size : dimensions()) count *= static_cast<size_t>(size);
  return count;
}

size_t AnyBuffer::size_bytes() const { return element_count() * size_of(element_type()); }

const Error& Decoder::finish() {
  const bool has_all = num_args_ == frame_.args.size && num_rets_ == frame_.rets.size && num_attrs_ == frame_.attrs.size;
  if (!has_all) fail("the call has other numbers of arguments, results and attributes");
  return error_;
}

RemainingArgs Decoder::take(RemainingArgs*) {
  const int64_t first = num_args_, size = frame_.args.size - first;
  for (int64_t i = 0; i < size; ++i) argument(XLA_FFI_DataType_INVALID);
  return {frame_.args.args + first, size < 0 ? 0 : size};
}

RemainingRets Decoder::take(RemainingRets*) {
  const int64_t first = num_rets_, size = frame_.rets.size - first;
  for (int64_t i = 0; i < size; ++i) result(XLA_FFI_DataType_INVALID);
  return {frame_.rets.rets + first, size < 0 ? 0 : size};
}

int64_t Decoder::take(int64_t*) {
  const void* value = scalar(XLA_FFI_DataType_S64);
  return value == nullptr ? 0 : *static_cast<const int64_t*>(value);
}

float Decoder::take(float*) {
  const void* value = scalar(XLA_FFI_DataType_F32);
  return value == nullptr ? 0.0f : *static_cast<const float*>(value);
}

double Decoder::take(double*) {
  const void* value = scalar(XLA_FFI_DataType_F64);
  return value == nullptr ? 0.0 : *static_cast<const double*>(value);
}

bool Decoder::take(bool*) {
  const void* value = scalar(XLA_FFI_DataType_PRED);
  return value != nullptr && *static_cast<const bool*>(value);
}

Span<const int64_t> Decoder::take(Span<const int64_t>*) {
  const auto* array = static_cast<const XLA_FFI_Array*>(attribute(XLA_FFI_AttrType_ARRAY));
  if (array == nullptr) return {};
  if (array->dtype != XLA_FFI_DataType_S64) {
    fail("an attribute is of another type");
    return {};
  }
  return {static_cast<const int64_t*>(array->data), array->size};
}

const XLA_FFI_Buffer* Decoder::argument(XLA_FFI_DataType type) {
  const int64_t i = num_args_++;
  if (i < frame_.args.size && frame_.args.types[i] == XLA_FFI_ArgType_BUFFER) {
    const auto* buffer = static_cast<const XLA_FFI_Buffer*>(frame_.args.args[i]);
    if (type == XLA_FFI_DataType_INVALID || buffer->dtype == type) return buffer;
  }
  fail("an argument is missing or of another type");
  return nullptr;
}

const XLA_FFI_Buffer* Decoder::result(XLA_FFI_DataType type) {
  const int64_t i = num_rets_++;
  if (i < frame_.rets.size && frame_.rets.types[i] == XLA_FFI_RetType_BUFFER) {
    const auto* buffer = static_cast<const XLA_FFI_Buffer*>(frame_.rets.rets[i]);
    if (type == XLA_FFI_DataType_INVALID || buffer->dtype == type) return buffer;
  }
  fail("a result is missing or of another type");
  return nullptr;
}

const void* Decoder::attribute(XLA_FFI_AttrType type) {
  const size_t index = static_cast<size_t>(num_attrs_++);
  const char* const name = index < names_.size() ? names_.begin()[index] : "";
  const size_t length = std::strlen(name);
  for (int64_t i = 0; i < frame_.attrs.size; ++i) {
    const XLA_FFI_ByteSpan& own = *frame_.attrs.names[i];
    if (own.len == length && std::memcmp(own.ptr, name, length) == 0) {
      if (frame_.attrs.types[i] == type) return frame_.attrs.attrs[i];
      break;
    }
  }
  fail("an attribute is missing or of another type");
  return nullptr;
}

const void* Decoder::scalar(XLA_FFI_DataType type) {
  const auto* found = static_cast<const XLA_FFI_Scalar*>(attribute(XLA_FFI_AttrType_SCALAR));
  if (found == nullptr) return nullptr;
  if (found->dtype != type) {
    fail("an attribute is of another type");
    return nullptr;
  }
  return found->value;
}

void Decoder::fail(const char* what) {
  if (!error_.failure()) error_ = Error::InvalidArgument(std::string("eagre: ") + what);
}

int64_t run_id_of(const XLA_FFI_CallFrame& frame) {
  XLA_FFI_RunId_Get_Args args{XLA_FFI_RunId_Get_Args_STRUCT_SIZE, nullptr, frame.ctx, -1};
  if (XLA_FFI_Error* error = frame.api->XLA_FFI_RunId_Get(&args); error != nullptr) {
    XLA_FFI_Error_Destroy_Args destroy{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    frame.api->XLA_FFI_Error_Destroy(&destroy);
    return -1;
  }
  return args.run_id;
}

bool is_metadata_call(const XLA_FFI_CallFrame& frame) {
  XLA_FFI_Extension_Base* const extension = frame.extension_start;
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata& metadata = *reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
  metadata.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  metadata.traits = 0;
  metadata.state_type_id = XLA_FFI_UNKNOWN_TYPE_ID;
  return true;
}

Error check_frame(const XLA_FFI_CallFrame& frame) {
  if (frame.struct_size < XLA_FFI_CallFrame_STRUCT_SIZE) return Error::InvalidArgument("eagre: XLA is too old");
  if (frame.stage != XLA_FFI_ExecutionStage_EXECUTE) return Error::InvalidArgument("eagre: another stage than execute");
  return Error::Success();
}

}  // namespace eagre::ffi
