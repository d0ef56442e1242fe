#include "packing/pack.h"

#include <algorithm>
#include <cstring>

#include "isa/isa.h"

namespace eagre {
namespace {

const uint8_t* row_of(const EncodedRows& from, int64_t output) {
  return from.rows + (from.order == nullptr ? output : from.order[output]) * from.row_bytes;
}

bool is_finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// Numbers of a group, as vectors of four inputs of each output, into vectors of `bits` of them from bit `first` on.
void pack_bits(const uint8_t* vectors, int first, int bits, std::byte* to) {
  const uint8_t mask = static_cast<uint8_t>((1 << bits) - 1);
  for (int vector = 0; vector < bits; ++vector) {
    uint8_t packed[64] = {};
    for (int field = 0; field * bits < 8; ++field) {
      const uint8_t* own = vectors + 64 * (vector + field * bits);
      for (int i = 0; i < 64; ++i) packed[i] |= static_cast<uint8_t>((own[i] >> first & mask) << (field * bits));
    }
    std::memcpy(to + 64 * vector, packed, sizeof packed);
  }
}

// One block of a tile, of what its rows have there.
void write_block(const RowBlock (&rows)[kTile], Format format, std::byte* block) {
  const Layout layout = layout_of(format);
  const size_t numbers_at = numbers_offset(format);
  std::fill_n(block, numbers_at, std::byte{0});
  for (int lane = 0; lane < kTile; ++lane) {
    if (layout.has_exponents) {
      block[lane] = static_cast<std::byte>(rows[lane].scale);
      continue;
    }
    std::memcpy(block + 2 * lane, &rows[lane].scale, 2);
    if (layout.has_minima) std::memcpy(block + kHalves + 2 * lane, &rows[lane].minimum, 2);
    if (!is_k(format)) continue;
    for (int part = 0; part < layout.parts * layout.block_groups; ++part) {
      block[scales_offset(format) + kTile * part + lane] = static_cast<std::byte>(rows[lane].scales[part]);
      if (layout.has_minima) {
        block[minima_offset(format) + kTile * part + lane] = static_cast<std::byte>(rows[lane].minima[part]);
      }
    }
  }
  for (int group = 0; group < layout.block_groups; ++group) {
    const uint8_t* numbers[kTile];
    for (int lane = 0; lane < kTile; ++lane) numbers[lane] = rows[lane].numbers + group * kGroup;
    alignas(64) uint8_t vectors[kTile * kGroup];
    transpose_words(numbers, kGroup / 16, vectors, 64);
    std::byte* to = block + numbers_at + group * group_bytes(format);
    pack_bits(vectors, 0, layout.low_bits, to);
    pack_bits(vectors, layout.low_bits, layout.high_bits, to + 64 * layout.low_bits);
  }
}

PackResult pack_integers(const EncodedRows& from, Format format, std::byte* tiles, int64_t stride) {
  const IntegerEncoding encoding = integer_encoding(from.encoding);
  if (encoding.decode == nullptr || encoding.format != format) return PackResult::kNoSuchFormat;
  const Layout layout = layout_of(format);
  if (from.num_groups % layout.block_groups != 0) return PackResult::kNoSuchFormat;
  const int64_t blocks = from.num_groups / layout.block_groups;
  if (blocks * static_cast<int64_t>(encoding.block_bytes) > from.row_bytes) return PackResult::kShortRows;
  bool finite = true;
  for (int64_t first = 0; first < from.num_outputs; first += kTile, tiles += stride) {
    const int count = static_cast<int>(std::min<int64_t>(kTile, from.num_outputs - first));
    RowBlock rows[kTile] = {};
    const uint8_t* next[kTile] = {};
    for (int lane = 0; lane < count; ++lane) next[lane] = row_of(from, first + lane);
    std::byte* to = tiles;
    for (int group = 0; group < from.num_groups; group += layout.block_groups, to += block_bytes(format)) {
      for (int lane = 0; lane < count; ++lane) {
        encoding.decode(next[lane], rows[lane]);
        next[lane] += encoding.block_bytes;
        finite &= is_finite(rows[lane].scale) && is_finite(rows[lane].minimum);
      }
      write_block(rows, format, to);
    }
  }
  return finite ? PackResult::kDone : PackResult::kNotFinite;
}

size_t float_bytes(Encoding encoding) { return encoding == Encoding::kF32 ? 4 : 2; }

Floats load_floats(Encoding encoding, const uint8_t* from) {
  alignas(64) uint8_t aligned[64];  // a file aligns its floats to bytes
  std::memcpy(aligned, from, 16 * float_bytes(encoding));
  if (encoding == Encoding::kF16) return load_halves(aligned);
  if (encoding == Encoding::kBf16) return load_bf16(reinterpret_cast<const uint16_t*>(aligned));
  return load(reinterpret_cast<const float*>(aligned));
}

// 32 floats of a row into the bits that a format holds.
void convert_floats(Encoding encoding, const uint8_t* from, Format format, uint8_t* to) {
  if (format == Format::kFloat16) {
    std::memcpy(to, from, kGroup * 2);
    return;
  }
  for (int half = 0; half < 2; ++half) {
    const Floats x = load_floats(encoding, from + half * 16 * float_bytes(encoding));
    if (format == Format::kFloat32) {
      store(reinterpret_cast<float*>(to) + half * 16, x);
    } else {
      store_bf16(reinterpret_cast<uint16_t*>(to) + half * 16, x);
    }
  }
}

PackResult pack_floats(const EncodedRows& from, Format format, std::byte* tiles, int64_t stride) {
  const Encoding encoding = from.encoding;
  const bool is_known = encoding == Encoding::kF32 || encoding == Encoding::kF16 || encoding == Encoding::kBf16;
  if (!is_known || is_integer(format) || (format == Format::kFloat16 && encoding != Encoding::kF16)) {
    return PackResult::kNoSuchFormat;
  }
  if (from.num_groups * kGroup * static_cast<int64_t>(float_bytes(encoding)) > from.row_bytes) {
    return PackResult::kShortRows;
  }
  const int quarters = static_cast<int>(group_bytes(format) / kTile / 16);
  for (int64_t first = 0; first < from.num_outputs; first += kTile, tiles += stride) {
    const int count = static_cast<int>(std::min<int64_t>(kTile, from.num_outputs - first));
    alignas(64) uint8_t rows[kTile][kGroup * 4] = {};
    const uint8_t* own[kTile];
    for (int lane = 0; lane < kTile; ++lane) own[lane] = rows[lane];
    for (int group = 0; group < from.num_groups; ++group) {
      for (int lane = 0; lane < count; ++lane) {
        const uint8_t* at = row_of(from, first + lane) + group * kGroup * float_bytes(encoding);
        convert_floats(encoding, at, format, rows[lane]);
      }
      uint8_t* to = reinterpret_cast<uint8_t*>(tiles + group * group_bytes(format));
      if (format != Format::kFloat16) {
        transpose_words(own, quarters, to, 64);
        continue;
      }
      for (int input = 0; input < kGroup; ++input) {
        for (int lane = 0; lane < kTile; ++lane) std::memcpy(to + 2 * (input * kTile + lane), rows[lane] + 2 * input, 2);
      }
    }
  }
  return PackResult::kDone;
}

}  // namespace

PackResult pack_rows(const EncodedRows& from, Format format, std::byte* tiles, int64_t stride) {
  return is_integer(format) ? pack_integers(from, format, tiles, stride) : pack_floats(from, format, tiles, stride);
}

}  // namespace eagre
