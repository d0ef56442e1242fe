#include "products/embedding.h"

#include <cstring>

#include "isa/isa.h"
#include "products/format.h"

namespace eagre {
namespace {

float half_at(const std::byte* halves, int64_t index) {
  alignas(64) float all[kTile];
  store(all, load_halves(halves));
  return all[index];
}

float number_at(Format format, const std::byte* numbers, int lane, int input) {
  const auto byte_at = [&](size_t at) { return std::to_integer<int>(numbers[at]); };
  switch (format) {
    case Format::kFloat32: {
      float value;
      std::memcpy(&value, numbers + (input * kTile + lane) * sizeof value, sizeof value);
      return value;
    }
    case Format::kBfloat16: {
      uint16_t half;
      std::memcpy(&half, numbers + ((input / 2 * kTile + lane) * 2 + input % 2) * sizeof half, sizeof half);
      const uint32_t bits = uint32_t{half} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    }
    case Format::kInt8:
    case Format::kInt8Min:
      return static_cast<float>(byte_at((input / 4 * kTile + lane) * 4 + input % 4));
    case Format::kInt4:
    case Format::kInt4Min: {
      const int within = input % (kGroup / 2), both = byte_at((within / 4 * kTile + lane) * 4 + within % 4);
      return static_cast<float>(input < kGroup / 2 ? both & 15 : both >> 4);
    }
  }
  return 0.0f;
}

}  // namespace

void unpack_output(const Matrix& matrix, int64_t index, float scale, float* to) {
  const size_t bytes = block_bytes(matrix.format);
  const std::byte* block = matrix.blocks + index / kTile * matrix.num_groups * bytes;
  const int lane = static_cast<int>(index % kTile);
  for (int group = 0; group < matrix.num_groups; ++group, block += bytes, to += kGroup) {
    const std::byte* numbers = block + numbers_offset(matrix.format);
    const bool scaled = is_integer(matrix.format);
    const float step = scaled ? half_at(block, lane) : 1.0f;
    const float minimum = has_minima(matrix.format) ? half_at(block + kHalves, lane) : 0.0f;
    const int zero = scaled && !has_minima(matrix.format) ? zero_point(matrix.format) : 0;
    for (int i = 0; i < kGroup; ++i) {
      const float number = number_at(matrix.format, numbers, lane, i) - static_cast<float>(zero);
      to[i] = (number * step + minimum) * scale;
    }
  }
}

}  // namespace eagre
