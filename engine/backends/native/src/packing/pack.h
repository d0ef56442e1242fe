// From rows of a model file to the tiles of a packed matrix.
#pragma once

#include <cstddef>
#include <cstdint>

#include "layout/format.h"
#include "packing/encoding.h"

namespace eagre {

// Rows as a file holds them.
struct EncodedRows {
  Encoding encoding;
  const uint8_t* rows;
  int64_t row_bytes;     // from row to row
  const int32_t* order;  // output i is row order[i]; null: row i
  int64_t num_outputs;
  int num_groups;  // of 32 inputs
};

enum class PackResult : int32_t {
  kDone = 0,
  kNoSuchFormat = 1,  // the format cannot hold the encoding
  kNotFinite = 2,     // a scale or a minimum is not, or is beyond float16
  kShortRows = 3,     // a row has fewer bytes than its inputs take
};

// Fills tiles, `stride` bytes from one to the next; the outputs that the last one lacks become zeros.
PackResult pack_rows(const EncodedRows& from, Format format, std::byte* tiles, int64_t stride);

}  // namespace eagre
