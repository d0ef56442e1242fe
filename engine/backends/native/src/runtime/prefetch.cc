#include "runtime/prefetch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace eagre {
namespace {

#if defined(__x86_64__)
bool is_amd_since_zen_5() {
  constexpr unsigned kFirstFamily = 26;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__builtin_cpu_is("amd") || __get_cpuid(1, &a, &b, &c, &d) == 0) return false;
  return (a >> 8 & 15) + (a >> 20 & 255) >= kFirstFamily;
}
#else
bool is_amd_since_zen_5() { return false; }
#endif

}  // namespace

const bool processor_keeps_requests = is_amd_since_zen_5();

}  // namespace eagre
