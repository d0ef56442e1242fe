// The layouts of blocks are those of the ggml project (ggml-common.h, ggml-quants.c), and of MXFP4 that of the OCP
// Microscaling Formats specification.
#include "packing/encoding.h"

#include <cstring>

#include "packing/grids.h"

namespace eagre {
namespace {

constexpr uint16_t kSign = 0x8000;  // of a float16

uint16_t half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}

// 32 numbers of 4 bits: the first 16 in the low halves.
void nibbles(const uint8_t* from, uint8_t* to) {
  for (int i = 0; i < kGroup / 2; ++i) {
    to[i] = from[i] & 15;
    to[i + kGroup / 2] = from[i] >> 4;
  }
}

// Adds the fifth bit of 32 numbers, bit i of a word that of number i, and something else.
void fifth_bits(const uint8_t* from, uint8_t* numbers, uint8_t addend) {
  uint32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  for (int i = 0; i < kGroup; ++i) numbers[i] = static_cast<uint8_t>(numbers[i] + ((bits >> i & 1u) << 4) + addend);
}

void q8_0(const uint8_t* block, RowBlock& to) {
  to.scale = half_at(block);
  for (int i = 0; i < kGroup; ++i) to.numbers[i] = block[2 + i] ^ 128;
}

void q4_0(const uint8_t* block, RowBlock& to) {
  to.scale = half_at(block);
  nibbles(block + 2, to.numbers);
}

void q4_1(const uint8_t* block, RowBlock& to) {
  to.scale = half_at(block);
  to.minimum = half_at(block + 2);
  nibbles(block + 4, to.numbers);
}

// Of 8 bits, with a minimum or a zero point.
void q8_1(const uint8_t* block, RowBlock& to) {
  to.scale = half_at(block);
  to.minimum = half_at(block + 2);
  std::memcpy(to.numbers, block + 4, kGroup);
}

void q5_0(const uint8_t* block, RowBlock& to) {
  to.scale = half_at(block);
  nibbles(block + 6, to.numbers);
  fifth_bits(block + 2, to.numbers, 128 - 16);
}

void q5_1(const uint8_t* block, RowBlock& to) {
  to.scale = half_at(block);
  to.minimum = half_at(block + 2);
  nibbles(block + 8, to.numbers);
  fifth_bits(block + 4, to.numbers, 0);
}

// Of 256 numbers: 32 bytes hold a bit, or two, of each of several groups.
template <int kBits>
void fields(const uint8_t* from, uint8_t* to) {
  constexpr int kFields = 8 / kBits;
  for (int group = 0; group < 8; ++group) {
    const uint8_t* own = from + group / kFields * kGroup;
    const int shift = group % kFields * kBits;
    for (int i = 0; i < kGroup; ++i) to[group * kGroup + i] = own[i] >> shift & ((1 << kBits) - 1);
  }
}

void q2_k(const uint8_t* block, RowBlock& to) {
  for (int i = 0; i < 16; ++i) {
    to.scales[i] = block[i] & 15;
    to.minima[i] = static_cast<int8_t>(block[i] >> 4);
  }
  fields<2>(block + 16, to.numbers);
  to.scale = half_at(block + 80);
  to.minimum = half_at(block + 82) ^ kSign;
}

void q3_k(const uint8_t* block, RowBlock& to) {
  uint8_t high[8 * kGroup];
  fields<1>(block, high);
  fields<2>(block + 32, to.numbers);
  for (int i = 0; i < 8 * kGroup; ++i) to.numbers[i] |= static_cast<uint8_t>(high[i] << 2);
  const uint8_t* scales = block + 96;  // of 6 bits: the low four in bytes 0 to 7, the others in bytes 8 to 11
  for (int i = 0; i < 16; ++i) {
    const int low = scales[i % 8] >> (i < 8 ? 0 : 4) & 15, top = scales[8 + i % 4] >> (i / 4 * 2) & 3;
    to.scales[i] = static_cast<int8_t>((low | top << 4) - 32);
  }
  to.scale = half_at(block + 108);
}

// Twelve bytes hold 8 scales and 8 minima of 6 bits: the first four of each in the low bits of bytes 0 to 7, the others'
// low halves in bytes 8 to 11 and their high bits on top of bytes 0 to 7.
void k_scales(const uint8_t* block, RowBlock& to) {
  to.scale = half_at(block);
  to.minimum = half_at(block + 2) ^ kSign;
  const uint8_t* packed = block + 4;
  for (int i = 0; i < 4; ++i) {
    to.scales[i] = packed[i] & 63;
    to.minima[i] = packed[4 + i] & 63;
    to.scales[4 + i] = static_cast<int8_t>((packed[8 + i] & 15) | packed[i] >> 6 << 4);
    to.minima[4 + i] = static_cast<int8_t>(packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4);
  }
}

// 32 bytes hold one group in the low halves, and the next in the high ones.
void q4_k(const uint8_t* block, RowBlock& to) {
  k_scales(block, to);
  fields<4>(block + 16, to.numbers);
}

void q5_k(const uint8_t* block, RowBlock& to) {
  k_scales(block, to);
  uint8_t high[8 * kGroup];
  fields<1>(block + 16, high);
  fields<4>(block + 48, to.numbers);
  for (int i = 0; i < 8 * kGroup; ++i) to.numbers[i] |= static_cast<uint8_t>(high[i] << 4);
}

void q6_k(const uint8_t* block, RowBlock& to) {
  uint8_t high[8 * kGroup];
  fields<2>(block + 128, high);
  for (int group = 0; group < 8; ++group) {  // of each four groups, two share the halves of 32 bytes
    const uint8_t* low = block + group / 4 * 64 + group % 2 * kGroup;
    const int shift = group % 4 < 2 ? 0 : 4;
    for (int i = 0; i < kGroup; ++i) {
      const int at = group * kGroup + i;
      to.numbers[at] = static_cast<uint8_t>((low[i] >> shift & 15) | high[at] << 4);
    }
  }
  std::memcpy(to.scales, block + 192, sizeof to.scales);
  to.scale = half_at(block + 208);
}

void iq4_xs(const uint8_t* block, RowBlock& to) {
  to.scale = half_at(block);
  const int high = half_at(block + 2);
  for (int group = 0; group < 8; ++group) {
    const int low = block[4 + group / 2] >> (group % 2 * 4) & 15;
    to.scales[group] = static_cast<int8_t>((low | (high >> (2 * group) & 3) << 4) - 32);
    nibbles(block + 8 + group * kGroup / 2, to.numbers + group * kGroup);
  }
}

// The scale is an exponent, which the format holds as it is.
void mxfp4(const uint8_t* block, RowBlock& to) {
  to.scale = block[0] == 255 ? uint16_t{0x7c00} : block[0];  // 255 is no number, and refused as such a float16 is
  nibbles(block + 1, to.numbers);
}

}  // namespace

IntegerEncoding integer_encoding(Encoding encoding) {
  switch (encoding) {
    case Encoding::kQ4_0: return {Format::kInt4, 18, q4_0};
    case Encoding::kQ4_1: return {Format::kInt4Min, 20, q4_1};
    case Encoding::kQ5_0: return {Format::kInt8, 22, q5_0};
    case Encoding::kQ5_1: return {Format::kInt8Min, 24, q5_1};
    case Encoding::kQ8_0: return {Format::kInt8, 34, q8_0};
    case Encoding::kQ2K: return {Format::kQ2K, 84, q2_k};
    case Encoding::kQ3K: return {Format::kQ3K, 110, q3_k};
    case Encoding::kQ4K: return {Format::kQ4K, 144, q4_k};
    case Encoding::kQ5K: return {Format::kQ5K, 176, q5_k};
    case Encoding::kQ6K: return {Format::kQ6K, 210, q6_k};
    case Encoding::kIq4Nl: return {Format::kIq4Nl, 18, q4_0};
    case Encoding::kIq2Xxs: return {Format::kIq2S, 66, grid_decoder_of(encoding)};
    case Encoding::kIq2Xs: return {Format::kIq2S, 74, grid_decoder_of(encoding)};
    case Encoding::kIq2S: return {Format::kIq2S, 82, grid_decoder_of(encoding)};
    case Encoding::kIq3Xxs: return {Format::kIq3Xxs, 98, grid_decoder_of(encoding)};
    case Encoding::kIq3S: return {Format::kIq3S, 110, grid_decoder_of(encoding)};
    case Encoding::kIq1S: return {Format::kIq1M, 50, grid_decoder_of(encoding)};
    case Encoding::kIq1M: return {Format::kIq1M, 56, grid_decoder_of(encoding)};
    case Encoding::kTq1_0: return {Format::kIq1M, 54, grid_decoder_of(encoding)};
    case Encoding::kTq2_0: return {Format::kIq1M, 66, grid_decoder_of(encoding)};
    case Encoding::kIq4Xs: return {Format::kIq4Xs, 136, iq4_xs};
    case Encoding::kMxfp4: return {Format::kMxfp4, 17, mxfp4};
    case Encoding::kQ4Zero: return {Format::kInt4Zero, 20, q4_1};
    case Encoding::kQ8Zero: return {Format::kInt8Zero, 36, q8_1};
    default: return {Format::kFloat32, 0, nullptr};
  }
}

}  // namespace eagre
