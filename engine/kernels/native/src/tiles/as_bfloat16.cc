// Integers of a tile as the bfloat16 numbers that they stand for.
#include "isa/isa.h"
#include "tiles/group.h"
#include "tiles/stream.h"
#include "tiles/tile_kernel.h"

namespace eagre {
namespace {

template <Format F>
void unpack(const std::byte* block, int num_groups, std::byte* to) {
  constexpr Layout kLayout = layout_of(F);
  constexpr int kVectors = kVectorsOfBytes / kLayout.parts;
  for (int g = 0; g < num_groups; g += kLayout.block_groups, block += block_bytes(F)) {
    const BlockReader<F> reader(block);
    for (int i = 0; i < kLayout.block_groups; ++i) {
      prefetch_behind<block_bytes(F), kLayout.block_groups>(block, i);
      typename BlockReader<F>::Group group;
      reader.read(i, group);
      for (int part = 0; part < kLayout.parts; ++part) {
        const Floats scale = group.scales[part];
        // A scale has at most 19 digits and a zero point is a power of two, so that their product is exact.
        const Floats offset =
            kLayout.has_minima ? group.minima[part] : mul(scale, broadcast(static_cast<float>(-kLayout.zero_point)));
        EAGRE_UNROLL(8)
        for (int v = part * kVectors; v < (part + 1) * kVectors; ++v, to += 2 * kTile * sizeof(float)) {
          const Words w = group.numbers[v];
          const auto weights = [&](Ints numbers) { return fma(to_floats(numbers), scale, offset); };
          store_words(to, bf16_pairs(weights(byte_of<0>(w)), weights(byte_of<1>(w))));
          store_words(to + kTile * sizeof(float), bf16_pairs(weights(byte_of<2>(w)), weights(byte_of<3>(w))));
        }
      }
    }
  }
}

}  // namespace

Bfloat16Unpacker bfloat16_unpacker_of(Format format) {
  switch (format) {
    case Format::kInt8: return unpack<Format::kInt8>;
    case Format::kInt8Min: return unpack<Format::kInt8Min>;
    case Format::kInt8Zero: return unpack<Format::kInt8Zero>;
    case Format::kInt4: return unpack<Format::kInt4>;
    case Format::kInt4Min: return unpack<Format::kInt4Min>;
    case Format::kInt4Zero: return unpack<Format::kInt4Zero>;
    case Format::kQ2K: return unpack<Format::kQ2K>;
    case Format::kQ3K: return unpack<Format::kQ3K>;
    case Format::kQ4K: return unpack<Format::kQ4K>;
    case Format::kQ5K: return unpack<Format::kQ5K>;
    case Format::kQ6K: return unpack<Format::kQ6K>;
    case Format::kIq4Xs: return unpack<Format::kIq4Xs>;
    case Format::kFloat32:
    case Format::kBfloat16:
    case Format::kFloat16: break;
  }
  return nullptr;
}

}  // namespace eagre
