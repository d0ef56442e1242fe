#include "tiles/tile_kernel.h"

#include <algorithm>

#include "tiles/matrix_unit.h"
#include "tiles/matrix_unit_floats.h"

namespace eagre {
namespace {

TileKernel kernel_of(Format format) {
#if EAGRE_HAS_TILE_REGISTERS
  switch (format) {
    case Format::kInt8: return multiply_on_matrix_unit<Format::kInt8>;
    case Format::kInt8Min: return multiply_on_matrix_unit<Format::kInt8Min>;
    case Format::kInt4: return multiply_on_matrix_unit<Format::kInt4>;
    case Format::kInt4Min: return multiply_on_matrix_unit<Format::kInt4Min>;
    case Format::kInt8Zero: return multiply_on_matrix_unit<Format::kInt8Zero>;
    case Format::kInt4Zero: return multiply_on_matrix_unit<Format::kInt4Zero>;
    case Format::kQ4K: return multiply_on_matrix_unit<Format::kQ4K>;
    case Format::kQ5K: return multiply_on_matrix_unit<Format::kQ5K>;
    case Format::kIq4Xs: return multiply_on_matrix_unit<Format::kIq4Xs>;
    case Format::kMxfp4: return multiply_on_matrix_unit<Format::kMxfp4>;
    case Format::kIq4Nl: return multiply_on_matrix_unit<Format::kIq4Nl>;
    case Format::kIq3Xxs: return multiply_on_matrix_unit<Format::kIq3Xxs>;
    case Format::kIq3S: return multiply_on_matrix_unit<Format::kIq3S>;
    default: break;
  }
#endif
  return vector_kernel_of(format);
}

#if EAGRE_HAS_TILE_REGISTERS

// One tile, or two neighbours, that are multiplied as bfloat16.
template <int kTiles>
void multiply_on_unit_as_bfloat16(const PackedRows& x, const MatrixPart& part, int64_t tile, UnpackedGroup* unpacked,
                                  float* totals, size_t between) {
  UnitTiles<kTiles> tiles;
  for (int i = 0; i < kTiles; ++i) {
    tiles.weights[i] = part.tile(tile + i);
    tiles.totals[i] = totals + i * between;
  }
  tiles.is_distant = !is_integer(part.format);
  if (tiles.is_distant) return multiply_bfloat16_on_matrix_unit(x, tiles);
  constexpr int kGroups = kBfloat16Groups / kTiles;
  static_assert(kGroups % 8 == 0, "whole blocks of K formats");
  const Bfloat16Unpacker unpack = bfloat16_unpacker_of(part.format);
  for (int first = 0; first < x.num_groups(); first += kGroups) {
    const int count = std::min(kGroups, x.num_groups() - first);
    for (int i = 0; i < kTiles; ++i) {
      std::byte* to = reinterpret_cast<std::byte*>(unpacked) + i * kGroups * group_bytes(Format::kBfloat16);
      unpack(part.tile(tile + i) + tile_bytes(part.format, first), count, to);
      tiles.weights[i] = to;
    }
    add_bfloat16_groups_on_matrix_unit(x, tiles, first, count);
  }
}

#else

// Integers, a few groups at a time unpacked to bfloat16.
void multiply_as_bfloat16(const PackedRows& x, Format format, const std::byte* tile, UnpackedGroup* unpacked,
                          float* totals) {
  std::byte* weights = reinterpret_cast<std::byte*>(unpacked);
  const Bfloat16Unpacker unpack = bfloat16_unpacker_of(format);
  for (int first = 0; first < x.num_groups(); first += kBfloat16Groups) {
    const int count = std::min(kBfloat16Groups, x.num_groups() - first);
    unpack(tile + tile_bytes(format, first), count, weights);
    add_bfloat16_groups(x, weights, first, count, totals);
  }
}

#endif

static_assert(kBfloat16Groups * group_bytes(Format::kBfloat16) <= kChunkGroups * sizeof(UnpackedGroup));

}  // namespace

// A matrix unit takes as long to add up its groups of bytes as it gains, and AVX2 has no such instructions.
bool multiplies_bytes_faster() {
  return two_tiles_kernel_of(Format::kInt8) != nullptr && !EAGRE_HAS_TILE_REGISTERS;
}

void accumulate_tiles(const PackedRows& x, const MatrixPart& part, int64_t tile, int count, UnpackedGroup* unpacked,
                      float* totals, size_t between) {
#if EAGRE_HAS_TILE_REGISTERS
  if (part.activations == Activations::kBfloat16) {
    for (; count >= 2; count -= 2, tile += 2, totals += 2 * between) {
      multiply_on_unit_as_bfloat16<2>(x, part, tile, unpacked, totals, between);
    }
    if (count == 1) multiply_on_unit_as_bfloat16<1>(x, part, tile, unpacked, totals, between);
    return;
  }
#else
  if (part.activations == Activations::kBfloat16 && is_integer(part.format)) {
    for (int i = 0; i < count; ++i) {
      multiply_as_bfloat16(x, part.format, part.tile(tile + i), unpacked, totals + i * between);
    }
    return;
  }
#endif
  // A matrix unit is faster than products of pairs. Rows may have what these take nonetheless, because packing is compiled
  // without the unit.
  const bool takes_pairs = x.has_pair_sums() && !EAGRE_HAS_TILE_REGISTERS;
  const PairKernel multiply_in_pairs = takes_pairs ? pair_kernel_of(part.format) : nullptr;
  if (multiply_in_pairs != nullptr) multiply_in_pairs(x, part, tile, count, totals, between);
  const bool takes_two = x.num_rows() >= kLeastRowsOfTwoTiles && !EAGRE_HAS_TILE_REGISTERS;
  const TwoTilesKernel multiply_two = takes_two ? two_tiles_kernel_of(part.format) : nullptr;
  int done = multiply_in_pairs != nullptr ? count : 0;
  for (; multiply_two != nullptr && done + 2 <= count; done += 2) {
    multiply_two(x, part, tile + done, totals + done * between, between);
  }
  const TileKernel multiply = kernel_of(part.format);
  const OffsetKernel add_offsets = x.num_offset_groups() > 0 ? offset_kernel_of(part.format) : nullptr;
  for (int i = 0; i < count; ++i) {
    if (i >= done) multiply(x, part.tile(tile + i), unpacked, totals + i * between);
    if (add_offsets != nullptr) add_offsets(x, part.tile(tile + i), totals + i * between);  // the tile is in a cache now
  }
}

}  // namespace eagre
