// Whether this process may use the matrix unit.
#pragma once

namespace eagre {

// Asks the system for the registers of the matrix unit, for all threads of the process, where this library is compiled for
// them. Returns null where the library may compute here, or why it may not. Threads with small stacks for signals, which
// the registers would have to be saved on, are a reason for the system to refuse.
const char* ask_for_tile_registers();

}  // namespace eagre
