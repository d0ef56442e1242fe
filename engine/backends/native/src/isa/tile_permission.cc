#include "isa/tile_permission.h"

#include "isa/tile_registers.h"

#if EAGRE_TILE_INSTRUCTIONS && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#endif

namespace eagre {

#if EAGRE_TILE_INSTRUCTIONS && defined(__linux__)

namespace {

// Linux, Documentation/arch/x86/xstate.rst: "Using dynamically enabled XSTATE features in user space applications".
constexpr long kRequestPermission = 0x1023, kTileData = 18;

// Some hypervisors announce the instructions without a palette that they could be configured with.
bool has_palette() {
  constexpr unsigned kTileInformation = 0x1d;
  unsigned most = 0, b = 0, c = 0, d = 0, sizes[4] = {};
  if (!__get_cpuid_count(kTileInformation, 0, &most, &b, &c, &d) || most < 1) return false;
  if (!__get_cpuid_count(kTileInformation, 1, &sizes[0], &sizes[1], &sizes[2], &sizes[3])) return false;
  const unsigned bytes = sizes[1] & 0xffff, registers = sizes[1] >> 16, rows = sizes[2] & 0xffff;
  return bytes >= kMostTileBytes && registers >= kTileRegisters && rows >= kMostTileRows;
}

}  // namespace

const char* ask_for_tile_registers() {
  if (!has_palette()) return "the processor, or its hypervisor, offers no configuration of the matrix unit";
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return nullptr;
  return std::strerror(errno);
}

#elif EAGRE_TILE_INSTRUCTIONS

const char* ask_for_tile_registers() { return "only Linux is known how to be asked for the matrix unit"; }

#else

const char* ask_for_tile_registers() { return nullptr; }

#endif

}  // namespace eagre
