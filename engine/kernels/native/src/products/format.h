// How a weight matrix [outputs, inputs] lies in memory: in one layout, for one row of activations and for thousands.
//
// A tile is 16 outputs, and a group is 32 inputs. A matrix is [tiles][groups] of blocks, so that a product with few rows
// reads memory in one stream. A block holds, for the 16 outputs:
//   scales   float16[16], then minima float16[16] where the format has them
//   numbers  in order of inputs, four (bytes, nibbles) or two (bfloat16) or one (float32) at a time
//            for all 16 outputs, which is what one vector instruction takes. Of nibbles, inputs 0 to
//            15 of the group are the low halves and 16 to 31 the high ones.
// The weight is scale * number + minimum, or scale * (number - 8 or 128) without minima.
#pragma once

#include <cstddef>
#include <cstdint>

namespace eagre {

constexpr int kTile = 16;   // outputs
constexpr int kGroup = 32;  // inputs

enum class Format : int64_t { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2, kInt8Min = 3, kInt4 = 4, kInt4Min = 5 };

constexpr bool is_integer(Format f) { return f != Format::kFloat32 && f != Format::kBfloat16; }
constexpr bool is_nibbles(Format f) { return f == Format::kInt4 || f == Format::kInt4Min; }
constexpr bool has_minima(Format f) { return f == Format::kInt8Min || f == Format::kInt4Min; }
constexpr int zero_point(Format f) { return is_nibbles(f) ? 8 : 128; }  // of formats without minima

constexpr size_t kHalves = kTile * sizeof(uint16_t);  // bytes of a block's scales, or minima

constexpr size_t numbers_offset(Format f) { return is_integer(f) ? (has_minima(f) ? 2 * kHalves : kHalves) : 0; }
constexpr size_t numbers_bytes(Format f) {
  constexpr size_t kNumbers = kTile * kGroup;
  if (is_nibbles(f)) return kNumbers / 2;
  if (is_integer(f)) return kNumbers;
  return kNumbers * (f == Format::kBfloat16 ? 2 : 4);
}
constexpr size_t block_bytes(Format f) { return numbers_offset(f) + numbers_bytes(f); }

}  // namespace eagre
