// Bursts as a target of XLA's foreign function interface, for the program that computes one, and as plain functions for
// the host.
#include <chrono>
#include <exception>

#include "ffi/handler.h"
#include "runtime/bursts.h"

namespace eagre {
namespace {

// Tells the host of the step's tokens; 1 where the burst goes on. A burst that the host has closed does not.
ffi::Error tell_step(S32 tokens, S32 number, S32Result goes_on) {
  if (number.element_count() != 1 || goes_on->element_count() != 1) return invalid("a burst has another shape");
  const std::shared_ptr<Burst> burst = Bursts::shared().find(number.typed_data()[0]);
  int32_t& result = goes_on->typed_data()[0] = 0;
  if (burst == nullptr) return ffi::Error::Success();
  if (static_cast<int64_t>(tokens.element_count()) != burst->num_rows()) {
    return invalid("a burst has another number of rows");
  }
  result = burst->tell(tokens.typed_data()) ? 1 : 0;
  return ffi::Error::Success();
}

}  // namespace

EAGRE_TARGET(eagre_tell_step, tell_step)

// Returns the number of a new burst, or -1 where there is no memory.
extern "C" int32_t eagre_open_burst(int64_t num_rows, int32_t num_steps) {
  try {
    return Bursts::shared().open(num_rows, num_steps);
  } catch (const std::exception&) {
    return -1;
  }
}

// Waits until a step of an open burst is told and copies its tokens; 0 where that takes longer than so many microseconds.
extern "C" int32_t eagre_wait_for_step(int32_t burst, int32_t step, int64_t most, int32_t* tokens) {
  return Bursts::shared().find(burst)->wait(step, std::chrono::microseconds(most), tokens) ? 1 : 0;
}

extern "C" int32_t eagre_num_told_steps(int32_t burst) { return Bursts::shared().find(burst)->num_told(); }

extern "C" int32_t eagre_cut_burst(int32_t burst) { return Bursts::shared().find(burst)->cut(); }

extern "C" void eagre_close_burst(int32_t burst) { Bursts::shared().close(burst); }

}  // namespace eagre
