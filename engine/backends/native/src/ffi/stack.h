// Stacks of packed matrices as the targets take them, checked.
#pragma once

#include <cstdint>
#include <cstring>

#include "ffi/handler.h"
#include "layout/format.h"
#include "layout/matrix.h"

namespace eagre {

// Where an entry of a stack of packed matrices lies, entry by entry and part by part: a number of Format, with
// kAsBfloat16 on top of one of integers that are multiplied as bfloat16; the offset of the first tile in units of 64
// bytes; and the bytes from tile to tile.
struct Place {
  int32_t format, offset, stride;
};
constexpr int32_t kAsBfloat16 = 64;
constexpr int64_t kPlaceNumbers = 3, kOffsetUnit = 64;

using Tiles = ffi::Span<const int64_t>;

// A stack of packed matrices as its caller hands it over.
struct Stack {
  const U8& blocks;   // [bytes]
  const S32& places;  // [entries][parts][kPlaceNumbers]
  Tiles tiles;        // of each part
  int64_t num_inputs;
};

inline ffi::Error read_part(const Stack& stack, const Place& place, int64_t num_tiles, MatrixPart& part) {
  const bool as_bfloat16 = (place.format & kAsBfloat16) != 0;
  const int32_t format = place.format & ~kAsBfloat16;
  if (format < 0 || format >= kNumFormats) return invalid("unknown format");
  part.format = static_cast<Format>(format);
  if (as_bfloat16 && !is_integer(part.format)) return invalid("only integers are multiplied as bfloat16");
  part.activations = as_bfloat16 ? Activations::kBfloat16 : layout_of(part.format).activations;
  const int64_t num_groups = stack.num_inputs / kGroup;
  if (num_groups % kBlockSizes.of[format].num_groups != 0) return invalid("the inputs are no whole blocks");
  const int64_t own = static_cast<int64_t>(tile_bytes(part.format, static_cast<int>(num_groups)));
  const int64_t offset = place.offset * kOffsetUnit;
  if (offset < 0 || num_tiles < 0 || place.stride < own ||
      (num_tiles > 0 && offset + (num_tiles - 1) * place.stride + own > static_cast<int64_t>(stack.blocks.size_bytes()))) {
    return invalid("a matrix has another shape");
  }
  part.tiles = reinterpret_cast<const std::byte*>(stack.blocks.typed_data()) + offset;
  part.stride = place.stride;
  part.num_tiles = num_tiles;
  return ffi::Error::Success();
}

inline ffi::Error read_matrix(const Stack& stack, int64_t entry, Matrix& matrix) {
  const auto shape = stack.places.dimensions();
  const int64_t num_parts = static_cast<int64_t>(stack.tiles.size());
  if (shape.size() != 3 || shape[1] != num_parts || shape[2] != kPlaceNumbers || num_parts < 1 ||
      num_parts > Matrix::kMostParts || stack.num_inputs < 0 || stack.num_inputs % kGroup != 0) {
    return invalid("a matrix has another shape");
  }
  if (entry < 0 || entry >= shape[0]) return invalid("there is no such layer");
  matrix.num_parts = static_cast<int>(num_parts);
  matrix.num_groups = static_cast<int>(stack.num_inputs / kGroup);
  matrix.num_tiles = 0;
  for (int64_t part = 0; part < num_parts; ++part) {
    Place place;
    std::memcpy(&place, stack.places.typed_data() + (entry * num_parts + part) * kPlaceNumbers, sizeof place);
    if (ffi::Error error = read_part(stack, place, stack.tiles[part], matrix.parts[part]); error.failure()) return error;
    matrix.num_tiles += stack.tiles[part];
  }
  return ffi::Error::Success();
}

}  // namespace eagre
