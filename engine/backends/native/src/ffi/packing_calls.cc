// What a loader of weights calls, in any number of threads at once: these are plain functions, and no targets of XLA.
#include <cstddef>
#include <cstdint>

#include "layout/format.h"
#include "nodes/node_memory.h"
#include "packing/grids.h"
#include "packing/pack.h"
#include "tiles/tile_kernel.h"

namespace eagre {

// As pack_rows; returns a number of PackResult.
extern "C" int32_t eagre_pack(int32_t encoding, int32_t format, const uint8_t* rows, int64_t row_bytes,
                              const int32_t* order, int64_t num_outputs, int64_t num_groups, uint8_t* tiles,
                              int64_t stride) {
  if (format < 0 || format >= kNumFormats) return static_cast<int32_t>(PackResult::kNoSuchFormat);
  const EncodedRows from{static_cast<Encoding>(encoding), rows, row_bytes, order, num_outputs,
                         static_cast<int>(num_groups)};
  return static_cast<int32_t>(pack_rows(from, static_cast<Format>(format), reinterpret_cast<std::byte*>(tiles), stride));
}

// As touch_tiles, of the threads of the kernels.
extern "C" void eagre_touch(uint8_t* array, int64_t num_bytes, const FreshTiles* tiles, int64_t count, int32_t per_node) {
  touch_tiles(ThreadNodes::shared(), reinterpret_cast<std::byte*>(array), num_bytes, tiles, count, per_node);
}

// As take_grid; 0 where it is none of the encoding's.
extern "C" int32_t eagre_take_grid(int32_t encoding, const int8_t* grid, int64_t num_bytes) {
  return take_grid(static_cast<Encoding>(encoding), grid, num_bytes) ? 1 : 0;
}

extern "C" int32_t eagre_multiplies_bytes_faster() { return multiplies_bytes_faster() ? 1 : 0; }

// Bytes of a tile of so many groups of inputs in a format.
extern "C" int64_t eagre_tile_bytes(int32_t format, int64_t num_groups) {
  if (format < 0 || format >= kNumFormats) return -1;
  return static_cast<int64_t>(tile_bytes(static_cast<Format>(format), static_cast<int>(num_groups)));
}

}  // namespace eagre
