// What the targets of XLA's foreign function interface have in common.
#pragma once

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string>

#include "ffi/call_frame.h"
#include "runtime/kernel_clock.h"

namespace eagre {

using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::Buffer<ffi::S32>;
using U32 = ffi::Buffer<ffi::U32>;
using U8 = ffi::Buffer<ffi::U8>;
using F32Result = ffi::ResultBuffer<ffi::F32>;
using S32Result = ffi::ResultBuffer<ffi::S32>;

// The run of a program to which the call belongs that this thread is in. It tells the engines of a process apart, whose
// runs take turns at the pool.
inline int64_t& current_run() {
  thread_local int64_t run = 0;
  return run;
}

inline ffi::Error invalid(const std::string& text) { return ffi::Error::InvalidArgument("eagre: " + text); }

// Calls a target with what it takes. Braces around the arguments of the constructor have them decoded from left to right.
struct Invocation {
  template <class... Parameters>
  Invocation(ffi::Decoder& decoder, ffi::Error (*target)(Parameters...), const Parameters&... arguments)
      : error(decoder.finish()) {
    if (!error.failure()) error = target(arguments...);
  }

  ffi::Error error;
};

// Turns exceptions, which would end the process in XLA, into errors.
template <class... Parameters>
XLA_FFI_Error* handle(const char* name, XLA_FFI_CallFrame* frame, ffi::Error (*target)(Parameters...),
                      std::initializer_list<const char*> attributes) {
  if (ffi::is_metadata_call(*frame)) return nullptr;
  if (const ffi::Error error = ffi::check_frame(*frame); error.failure()) return error.release(frame->api);
  const KernelTimer timer(name);
  try {
    current_run() = ffi::run_id_of(*frame);
    ffi::Decoder decoder(*frame, attributes);
    return Invocation{decoder, target, decoder.take<Parameters>()...}.error.release(frame->api);
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("eagre: ") + error.what()).release(frame->api);
  }
}

// Exports a target, whose attributes have these names, in the order of its parameters.
#define EAGRE_TARGET(symbol, target, ...) \
  extern "C" XLA_FFI_Error* symbol(XLA_FFI_CallFrame* frame) { return handle(#symbol, frame, target, {__VA_ARGS__}); }

}  // namespace eagre
