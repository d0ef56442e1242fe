// What the library offers beside its kernels.
#include "border/handler.h"
#include "runtime/tile_permission.h"

namespace eagre {
namespace {

// Leaves its result as it is.
ffi::Error empty(ffi::Result<ffi::AnyBuffer>) { return ffi::Error::Success(); }

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(eagre_empty, Guarded<empty>::call, ffi::Ffi::Bind().Ret<ffi::AnyBuffer>());

// Tells of which sources the library was built.
#ifndef EAGRE_SOURCES
#define EAGRE_SOURCES "unknown"
#endif
extern "C" const char* eagre_sources() { return EAGRE_SOURCES; }

// Asks the system for what it must allow before a kernel runs. Returns null, or why it was refused.
extern "C" const char* eagre_prepare() { return ask_for_tile_registers(); }

}  // namespace eagre
