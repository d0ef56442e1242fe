// What the targets of XLA's foreign function interface have in common.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace eagre {

namespace ffi = xla::ffi;
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

// A handler that turns exceptions, which would end the process in XLA, into errors.
template <auto kBody>
struct Guarded;
template <class... Arguments, ffi::Error (*kBody)(Arguments...)>
struct Guarded<kBody> {
  static ffi::Error call(Arguments... arguments) {
    try {
      return kBody(arguments...);
    } catch (const std::exception& error) {
      return ffi::Error::Internal(std::string("eagre: ") + error.what());
    }
  }
};

// A guarded handler of a call that takes its turn at the pool. It is bound with `bind_run`.
template <auto kBody>
struct InTurn;
template <class... Arguments, ffi::Error (*kBody)(Arguments...)>
struct InTurn<kBody> {
  static ffi::Error call(ffi::RunId run, Arguments... arguments) {
    current_run() = run.run_id;
    return Guarded<kBody>::call(arguments...);
  }
};

inline auto bind_run() { return ffi::Ffi::Bind().Ctx<ffi::RunId>(); }

}  // namespace eagre
