// What the library offers beside its kernels.
#include <sys/mman.h>

#include <cstdint>

#include "ffi/handler.h"
#include "isa/tile_permission.h"
#include "nodes/node_memory.h"
#include "pages/key_block.h"

namespace eagre {
namespace {

// Leaves its result as it is, but asks for huge pages where the system gives them. Attention reads keys from many
// places, and the processor has to translate the address of each system page that it reads from: one translation is
// enough for a huge page, in the place of 512. Any thread may read them, so they are spread over the memory nodes. The
// states of sampling are made here, too.
ffi::Error empty(ffi::Result<ffi::AnyBuffer> array) {
#ifdef MADV_HUGEPAGE  // on Linux
  constexpr uintptr_t kHugePage = 2 << 20;
  const auto begin = reinterpret_cast<uintptr_t>(array->untyped_data());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (begin + array->size_bytes()) / kHugePage * kHugePage;
  // It is a wish: a kernel that was built without them refuses it.
  if (first < end) {
    madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
    interleave(ThreadNodes::shared(), reinterpret_cast<void*>(first), end - first);
  }
#endif
  return ffi::Error::Success();
}

}  // namespace

EAGRE_TARGET(eagre_empty, empty)

// Tells of which sources the library was built.
#ifndef EAGRE_SOURCES
#define EAGRE_SOURCES "unknown"
#endif
extern "C" const char* eagre_sources() { return EAGRE_SOURCES; }

// How many memory nodes the kernels' threads are of.
extern "C" int32_t eagre_num_nodes() { return static_cast<int32_t>(ThreadNodes::shared().nodes().size()); }

// Whether the system takes the memory of keys and values from all of these nodes in turn: 0, or the error's number.
extern "C" int32_t eagre_interleave_error() { return interleave_error(ThreadNodes::shared()); }

// Tells which type of pages of 16 bits these kernels multiply fastest on this machine.
extern "C" const char* eagre_page_type() { return fastest_type() == PageType::kInt16 ? "int16" : "bfloat16"; }

// Begins or ends the measurement of kernels.
extern "C" void eagre_time_kernels(int32_t is_wanted) { KernelClock::shared().run(is_wanted != 0); }

// Writes what was measured since the last call, at most so many kernels; returns how many there were.
extern "C" int64_t eagre_take_kernel_times(KernelTime* times, int64_t most) { return KernelClock::shared().take(times, most); }

// Asks the system for what it must allow before a kernel runs. Returns null, or why it was refused.
extern "C" const char* eagre_prepare() { return ask_for_tile_registers(); }

}  // namespace eagre
