// How a weight matrix [outputs, inputs] lies in memory: in one layout, for one row of activations and for thousands.
//
// A tile is 16 outputs, and a group is 32 inputs. A tile is a row of blocks of one group or, of the K formats, of eight,
// so that a product with few rows reads memory in one stream. A block holds, for the 16 outputs:
//   scales   float16[16], or of MXFP4 the exponents of powers of two, uint8[16]; then minima float16[16] where the format has them. Formats of zero points have those in the
//            minima's place, negated, because scale * zero point is rarely a float16. In a K format these are factors
//            for the whole block, and behind them stand int8[16] scales, and then minima, for each part of each group,
//            in the order of inputs; the bytes are filled up to a multiple of 64
//   numbers  of one group after the other, in order of inputs, four (bytes and less), two (16 bits) or one (float32) at
//            a time for all 16 outputs, which is what one vector instruction takes: a group of bytes is 8 vectors. Of
//            numbers of fewer bits, field f of each byte in vector v is that of vector v + f * vectors: of nibbles,
//            inputs 0 to 15 of the group are the low halves and 16 to 31 the high ones. The high bits that some
//            formats have stand behind the low ones in vectors of their own, packed in the same way. Those of some
//            formats are codes, each of which stands for a number: see `Codes`
// The weight is scale * number + minimum, or scale * (number - zero point) without minima or with zero points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace eagre {

constexpr int kTile = 16;   // outputs
constexpr int kGroup = 32;  // inputs

// The K formats hold the numbers of the formats of those names in GGUF files. IQ2_S also holds those of IQ2_XXS and IQ2_XS,
// and IQ1_M those of IQ1_S, TQ1_0 and TQ2_0.
enum class Format : int64_t {
  kFloat32 = 0,
  kBfloat16 = 1,
  kInt8 = 2,
  kInt8Min = 3,
  kInt4 = 4,
  kInt4Min = 5,
  kFloat16 = 6,
  kQ2K = 7,
  kQ3K = 8,
  kQ4K = 9,
  kQ5K = 10,
  kQ6K = 11,
  kIq4Xs = 12,
  kInt4Zero = 13,
  kInt8Zero = 14,
  kMxfp4 = 15,
  kIq4Nl = 16,
  kIq3Xxs = 17,
  kIq3S = 18,
  kIq2S = 19,
  kIq1M = 20,
};
constexpr int64_t kNumFormats = 21;

// What rows of activations are rounded to before they are multiplied.
enum class Activations { kFloat32, kBfloat16, kInt8 };
constexpr int kNumActivations = 3;

// What the integer kernels take of the sums of a row's int8 values, over a group or over each half of it: times the
// row's scale for minima, or times minus the zero point.
enum class Sums { kScaled, kZero8, kZero12, kZero128, kHalvesScaled, kHalvesZero4, kHalvesZero32, kHalvesZero128 };
constexpr int kNumSums = 8;

// What the 4 bits of a number stand for, plus the zero point of the format: looked up in a register.
struct Codes {
  uint8_t numbers[16];
};
inline constexpr Codes kFp4Codes{{12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}};  // doubled
inline constexpr Codes kIq4Codes{{1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}};
// Of these the inverted bits of a code stand for the number with the other sign.
inline constexpr Codes kIq3XxsCodes{{66, 76, 84, 92, 100, 108, 116, 124, 132, 140, 148, 156, 164, 172, 180, 190}};
inline constexpr Codes kIq3SCodes{{113, 115, 117, 119, 121, 123, 125, 127, 129, 131, 133, 135, 137, 139, 141, 143}};
inline constexpr Codes kIq2Codes{{128, 128, 128, 128, 128, 85, 103, 120, 136, 153, 171, 128, 128, 128, 128, 128}};
// -1, 0 and 1, moved by an eighth up or down or left where they are: all times eight.
inline constexpr Codes kIq1Codes{{128, 128, 128, 128, 119, 120, 121, 127, 129, 135, 136, 137, 128, 128, 128, 128}};

struct Layout {
  Activations activations;
  int low_bits;   // of a number, in vectors that hold those of one group
  int high_bits;  // on top of them, in vectors of their own
  int block_groups;
  // Of formats of integers:
  int parts;  // of a group, each with a scale
  bool has_minima;
  int zero_point;  // where there are no minima
  Sums sums;
  bool has_zero_points = false;  // in place of minima, which follow from them
  // That numbers are; nothing: they are the numbers themselves. (No pointer: with sanitizers GCC compares none with null in
  // a constant.)
  std::optional<Codes> codes = std::nullopt;
  bool has_exponents = false;  // the scales are powers of two
  float factor = 1.0f;         // of all scales, a power of two
};

constexpr Layout layout_of(Format format) {
  constexpr Activations kInt8 = Activations::kInt8;
  switch (format) {
    case Format::kFloat32: return {Activations::kFloat32, 32, 0, 1, 0, false, 0, Sums::kScaled};
    case Format::kFloat16: return {Activations::kFloat32, 16, 0, 1, 0, false, 0, Sums::kScaled};
    case Format::kBfloat16: return {Activations::kBfloat16, 16, 0, 1, 0, false, 0, Sums::kScaled};
    case Format::kInt8: return {kInt8, 8, 0, 1, 1, false, 128, Sums::kZero128};
    case Format::kInt8Min: return {kInt8, 8, 0, 1, 1, true, 0, Sums::kScaled};
    case Format::kInt4: return {kInt8, 4, 0, 1, 1, false, 8, Sums::kZero8};
    case Format::kInt4Min: return {kInt8, 4, 0, 1, 1, true, 0, Sums::kScaled};
    case Format::kQ2K: return {kInt8, 2, 0, 8, 2, true, 0, Sums::kHalvesScaled};
    case Format::kQ3K: return {kInt8, 2, 1, 8, 2, false, 4, Sums::kHalvesZero4};
    case Format::kQ4K: return {kInt8, 4, 0, 8, 1, true, 0, Sums::kScaled};
    case Format::kQ5K: return {kInt8, 4, 1, 8, 1, true, 0, Sums::kScaled};
    case Format::kQ6K: return {kInt8, 4, 2, 8, 2, false, 32, Sums::kHalvesZero32};
    case Format::kIq4Xs: return {kInt8, 4, 0, 8, 1, false, 128, Sums::kZero128, false, kIq4Codes};
    case Format::kIq4Nl: return {kInt8, 4, 0, 1, 1, false, 128, Sums::kZero128, false, kIq4Codes};
    case Format::kIq3Xxs: return {kInt8, 4, 0, 8, 1, false, 128, Sums::kZero128, false, kIq3XxsCodes, false, 0.25f};
    case Format::kIq3S: return {kInt8, 4, 0, 8, 1, false, 128, Sums::kZero128, false, kIq3SCodes};
    case Format::kIq2S: return {kInt8, 4, 0, 8, 2, false, 128, Sums::kHalvesZero128, false, kIq2Codes, false, 0.125f};
    case Format::kIq1M: return {kInt8, 4, 0, 8, 2, false, 128, Sums::kHalvesZero128, false, kIq1Codes, false, 0.125f};
    case Format::kInt4Zero: return {kInt8, 4, 0, 1, 1, true, 0, Sums::kScaled, true};
    case Format::kInt8Zero: return {kInt8, 8, 0, 1, 1, true, 0, Sums::kScaled, true};
    case Format::kMxfp4: return {kInt8, 4, 0, 1, 1, false, 12, Sums::kZero12, false, kFp4Codes, true};
  }
  return {};
}

constexpr bool is_integer(Format f) { return layout_of(f).activations == Activations::kInt8; }
constexpr bool is_k(Format f) { return layout_of(f).block_groups > 1; }
constexpr bool has_minima(Format f) { return layout_of(f).has_minima; }

constexpr bool is_of_halves(Sums sums) { return sums >= Sums::kHalvesScaled; }

constexpr size_t kHalves = kTile * sizeof(uint16_t);  // bytes of float16[16]

// Bits of a number that is multiplied.
constexpr int bits_of_number(Format f) {
  if (!layout_of(f).codes) return layout_of(f).low_bits + layout_of(f).high_bits;
  return layout_of(f).zero_point < 16 ? 5 : 8;
}

// Where the int8 scales of a K format begin in a block, and where its minima do.
constexpr size_t scales_offset(Format f) {
  return layout_of(f).has_exponents ? size_t{kTile} : has_minima(f) ? 2 * kHalves : kHalves;
}
constexpr size_t minima_offset(Format f) {
  return scales_offset(f) + size_t{kTile} * layout_of(f).parts * layout_of(f).block_groups;
}
constexpr size_t numbers_offset(Format f) {
  if (!is_integer(f)) return 0;
  if (!is_k(f)) return scales_offset(f);
  const size_t scales = minima_offset(f) - scales_offset(f);
  return (scales_offset(f) + (has_minima(f) ? 2 : 1) * scales + 63) / 64 * 64;
}
constexpr size_t group_bytes(Format f) {  // of the numbers
  return size_t{kTile} * kGroup * (layout_of(f).low_bits + layout_of(f).high_bits) / 8;
}
constexpr size_t block_bytes(Format f) { return numbers_offset(f) + layout_of(f).block_groups * group_bytes(f); }

// The groups and the bytes of a block of each format. A format that is known only when a program runs is looked up here: a
// step reads the places of some thousand experts, and to work these out each time takes more than all else of it.
struct BlockSize {
  int num_groups;
  size_t bytes;
};
struct BlockSizes {
  BlockSize of[kNumFormats];
};
constexpr BlockSizes block_sizes() {
  BlockSizes sizes{};
  for (int64_t i = 0; i < kNumFormats; ++i) {
    const Format f = static_cast<Format>(i);
    sizes.of[i] = {layout_of(f).block_groups, block_bytes(f)};
  }
  return sizes;
}
inline constexpr BlockSizes kBlockSizes = block_sizes();

constexpr size_t tile_bytes(Format f, int num_groups) {
  const BlockSize& block = kBlockSizes.of[static_cast<int64_t>(f)];
  return num_groups / block.num_groups * block.bytes;
}

}  // namespace eagre
