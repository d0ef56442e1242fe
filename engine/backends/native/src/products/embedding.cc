#include "products/embedding.h"

#include <cstring>

#include "isa/isa.h"
#include "layout/format.h"
#include "tiles/group.h"

namespace eagre {
namespace {

// One output of a block, which is a lane of its vectors.
template <Format F>
void unpack_integers(const std::byte* block, int lane, float scale, float* to) {
  const BlockReader<F> reader(block);
  constexpr Layout kLayout = layout_of(F);
  for (int i = 0; i < kLayout.block_groups; ++i, to += kGroup) {
    typename BlockReader<F>::Group group;
    reader.read(i, group);
    UnpackedGroup unpacked;
    group.store_unpacked(unpacked);
    for (int input = 0; input < kGroup; ++input) {
      const int part = input * kLayout.parts / kGroup;
      const int number = unpacked.numbers[(input / 4 * kTile + lane) * 4 + input % 4] - kLayout.zero_point;
      const float minimum = kLayout.has_minima ? unpacked.minima[part][lane] : 0.0f;
      to[input] = (static_cast<float>(number) * unpacked.scales[part][lane] + minimum) * scale;
    }
  }
}

template <Format F>
void unpack_floats(const std::byte* block, int lane, float scale, float* to) {
  if constexpr (F == Format::kBfloat16) {  // two inputs a word
    for (int pair = 0; pair < kGroup / 2; ++pair) {
      uint32_t both;
      std::memcpy(&both, block + (pair * kTile + lane) * sizeof both, sizeof both);
      const uint32_t wide[2] = {both << 16, both & 0xffff0000u};
      float inputs[2];
      std::memcpy(inputs, wide, sizeof wide);
      for (int i = 0; i < 2; ++i) to[2 * pair + i] = inputs[i] * scale;
    }
    return;
  }
  for (int input = 0; input < kGroup; ++input) {
    alignas(64) float all[kTile];
    if constexpr (F == Format::kFloat16) {
      store(all, load_halves(block + input * kHalves));
    } else {
      std::memcpy(all, block + input * sizeof all, sizeof all);
    }
    to[input] = all[lane] * scale;
  }
}

template <Format F>
void unpack_blocks(const std::byte* tile, int num_groups, int lane, float scale, float* to) {
  for (int group = 0; group < num_groups; group += layout_of(F).block_groups, tile += block_bytes(F)) {
    if constexpr (is_integer(F)) {
      unpack_integers<F>(tile, lane, scale, to + group * kGroup);
    } else {
      unpack_floats<F>(tile, lane, scale, to + group * kGroup);
    }
  }
}

using UnpackBlocks = decltype(&unpack_blocks<Format::kFloat32>);

UnpackBlocks unpack_blocks_of(Format format) {
  switch (format) {
    case Format::kFloat32: return unpack_blocks<Format::kFloat32>;
    case Format::kBfloat16: return unpack_blocks<Format::kBfloat16>;
    case Format::kInt8: return unpack_blocks<Format::kInt8>;
    case Format::kInt8Min: return unpack_blocks<Format::kInt8Min>;
    case Format::kInt4: return unpack_blocks<Format::kInt4>;
    case Format::kInt4Min: return unpack_blocks<Format::kInt4Min>;
    case Format::kFloat16: return unpack_blocks<Format::kFloat16>;
    case Format::kQ2K: return unpack_blocks<Format::kQ2K>;
    case Format::kQ3K: return unpack_blocks<Format::kQ3K>;
    case Format::kQ4K: return unpack_blocks<Format::kQ4K>;
    case Format::kQ5K: return unpack_blocks<Format::kQ5K>;
    case Format::kQ6K: return unpack_blocks<Format::kQ6K>;
    case Format::kIq4Xs: return unpack_blocks<Format::kIq4Xs>;
    case Format::kInt4Zero: return unpack_blocks<Format::kInt4Zero>;
    case Format::kInt8Zero: return unpack_blocks<Format::kInt8Zero>;
    case Format::kMxfp4: return unpack_blocks<Format::kMxfp4>;
    case Format::kIq4Nl: return unpack_blocks<Format::kIq4Nl>;
    case Format::kIq3Xxs: return unpack_blocks<Format::kIq3Xxs>;
    case Format::kIq3S: return unpack_blocks<Format::kIq3S>;
    case Format::kIq2S: return unpack_blocks<Format::kIq2S>;
    case Format::kIq1M: return unpack_blocks<Format::kIq1M>;
  }
  return unpack_blocks<Format::kFloat32>;
}

}  // namespace

void unpack_output(const Matrix& matrix, int64_t index, float scale, float* to) {
  int64_t tile = index / kTile;
  const MatrixPart& part = matrix.part_of(tile);
  unpack_blocks_of(part.format)(part.tile(tile), matrix.num_groups, static_cast<int>(index % kTile), scale, to);
}

}  // namespace eagre
