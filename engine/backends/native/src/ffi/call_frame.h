// A call of XLA's foreign function interface, decoded by its C interface.
//
// XLA's own C++ interface (xla/ffi/api/ffi.h) does the same, but takes a third of the compile time of all kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "xla/ffi/api/c_api.h"

namespace eagre::ffi {

constexpr XLA_FFI_DataType F32 = XLA_FFI_DataType_F32, BF16 = XLA_FFI_DataType_BF16, S8 = XLA_FFI_DataType_S8,
                           S16 = XLA_FFI_DataType_S16, S32 = XLA_FFI_DataType_S32, U8 = XLA_FFI_DataType_U8,
                           U32 = XLA_FFI_DataType_U32;

template <XLA_FFI_DataType>
struct TypeOf;
template <> struct TypeOf<F32> { using Type = float; };
template <> struct TypeOf<S32> { using Type = int32_t; };
template <> struct TypeOf<U8> { using Type = uint8_t; };
template <> struct TypeOf<U32> { using Type = uint32_t; };

template <class T>
class Span {
 public:
  Span() = default;
  Span(T* data, size_t size) : data_(data), size_(size) {}

  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

class Error {
 public:
  static Error Success() { return {}; }
  static Error InvalidArgument(std::string message) { return {XLA_FFI_Error_Code_INVALID_ARGUMENT, std::move(message)}; }
  static Error Internal(std::string message) { return {XLA_FFI_Error_Code_INTERNAL, std::move(message)}; }

  bool failure() const { return code_ != XLA_FFI_Error_Code_OK; }

  // Null for a success. The caller, which is XLA, destroys it.
  XLA_FFI_Error* release(const XLA_FFI_Api* api) const;

 private:
  Error() = default;
  Error(XLA_FFI_Error_Code code, std::string message) : code_(code), message_(std::move(message)) {}

  XLA_FFI_Error_Code code_ = XLA_FFI_Error_Code_OK;
  std::string message_;
};

// An argument or a result of any type.
class AnyBuffer {
 public:
  explicit AnyBuffer(const XLA_FFI_Buffer* buffer) : buffer_(buffer) {}

  XLA_FFI_DataType element_type() const { return buffer_->dtype; }
  Span<const int64_t> dimensions() const { return {buffer_->dims, static_cast<size_t>(buffer_->rank)}; }
  void* untyped_data() const { return buffer_->data; }
  size_t element_count() const;
  size_t size_bytes() const;

 private:
  const XLA_FFI_Buffer* buffer_;
};

template <XLA_FFI_DataType kType>
class Buffer : public AnyBuffer {
 public:
  static constexpr XLA_FFI_DataType kDataType = kType;
  explicit Buffer(const XLA_FFI_Buffer* buffer) : AnyBuffer(buffer) {}
  explicit Buffer(const AnyBuffer& buffer) : AnyBuffer(buffer) {}

  typename TypeOf<kType>::Type* typed_data() const { return static_cast<typename TypeOf<kType>::Type*>(untyped_data()); }
};

template <class B>
class Result {
 public:
  explicit Result(B buffer) : buffer_(buffer) {}

  const B* operator->() const { return &buffer_; }
  const B& operator*() const { return buffer_; }

 private:
  B buffer_;
};

template <XLA_FFI_DataType kType>
using ResultBuffer = Result<Buffer<kType>>;

// The arguments or the results behind those that a target names.
class Remaining {
 public:
  Remaining(void** buffers, int64_t size) : buffers_(buffers), size_(size) {}

  size_t size() const { return static_cast<size_t>(size_); }
  AnyBuffer operator[](size_t i) const { return AnyBuffer(static_cast<const XLA_FFI_Buffer*>(buffers_[i])); }

 private:
  void** buffers_;
  int64_t size_;
};
struct RemainingArgs : Remaining { using Remaining::Remaining; };
struct RemainingRets : Remaining { using Remaining::Remaining; };

// Takes arguments, results and attributes in the order in which a target declares them. What it gives after an error
// must not be used.
class Decoder {
 public:
  Decoder(const XLA_FFI_CallFrame& frame, std::initializer_list<const char*> names) : frame_(frame), names_(names) {}

  template <class T>
  T take() {
    return take(static_cast<T*>(nullptr));
  }

  // The first error, which may be that the call has more than the target takes.
  const Error& finish();

 private:
  template <XLA_FFI_DataType kType>
  Buffer<kType> take(Buffer<kType>*) {
    return Buffer<kType>(argument(kType));
  }
  template <XLA_FFI_DataType kType>
  Result<Buffer<kType>> take(Result<Buffer<kType>>*) {
    return Result<Buffer<kType>>(Buffer<kType>(result(kType)));
  }
  AnyBuffer take(AnyBuffer*) { return AnyBuffer(argument(XLA_FFI_DataType_INVALID)); }
  Result<AnyBuffer> take(Result<AnyBuffer>*) { return Result<AnyBuffer>(AnyBuffer(result(XLA_FFI_DataType_INVALID))); }
  RemainingArgs take(RemainingArgs*);
  RemainingRets take(RemainingRets*);
  int64_t take(int64_t*);
  float take(float*);
  double take(double*);
  bool take(bool*);
  Span<const int64_t> take(Span<const int64_t>*);

  // The next buffer; of any type for INVALID. Null after an error.
  const XLA_FFI_Buffer* argument(XLA_FFI_DataType type);
  const XLA_FFI_Buffer* result(XLA_FFI_DataType type);

  // What the next name stands for; null where it is another kind of attribute or there is none.
  const void* attribute(XLA_FFI_AttrType type);
  const void* scalar(XLA_FFI_DataType type);

  void fail(const char* what);

  const XLA_FFI_CallFrame& frame_;
  const std::initializer_list<const char*> names_;  // of the attributes
  int64_t num_args_ = 0, num_rets_ = 0, num_attrs_ = 0;
  Error error_ = Error::Success();
};

// The run of a program to which the call belongs; -1 where XLA does not say.
int64_t run_id_of(const XLA_FFI_CallFrame& frame);

// Whether XLA calls only to learn what the handler was compiled for, which is then answered.
bool is_metadata_call(const XLA_FFI_CallFrame& frame);

// An error where the frame is older than this library, or belongs to another stage than the execution.
Error check_frame(const XLA_FFI_CallFrame& frame);

}  // namespace eagre::ffi
