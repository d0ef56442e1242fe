// The forms in which model files hold rows of weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "layout/format.h"

namespace eagre {

// The values are those of the types of the ggml project (ggml.h), and of Encoding in engine/weights/encodings.py.
enum class Encoding : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2K = 10,
  kQ3K = 11,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kIq2Xxs = 16,
  kIq2Xs = 17,
  kIq3Xxs = 18,
  kIq1S = 19,
  kIq4Nl = 20,
  kIq3S = 21,
  kIq2S = 22,
  kIq4Xs = 23,
  kIq1M = 29,
  kBf16 = 30,
  kTq1_0 = 34,
  kTq2_0 = 35,
  kMxfp4 = 39,
  // Not of files: what the readers of quantised checkpoints write for the packer. A group is a scale and a negated zero
  // point, float16 both, and 16 bytes as those of Q4_1 or 32 of one number each.
  kQ4Zero = 1000,
  kQ8Zero = 1001,
};

// What a block of a packed matrix takes of one row: up to eight groups. Scales and minima are those of format.h.
struct RowBlock {
  uint8_t numbers[8 * kGroup];
  uint16_t scale, minimum;  // float16; of MXFP4 the exponent
  int8_t scales[16], minima[16];  // of K formats
};

// Takes apart one block of a row.
using Decode = void (*)(const uint8_t* block, RowBlock& to);

// An encoding of integers.
struct IntegerEncoding {
  Format format;        // which holds the same numbers
  size_t block_bytes;   // of as many weights as a block of the format has
  Decode decode;        // null where there is no such encoding
};

IntegerEncoding integer_encoding(Encoding encoding);

}  // namespace eagre
