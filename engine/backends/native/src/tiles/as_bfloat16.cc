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
  return kernel_of_integers<Bfloat16Unpacker>(format, [](auto constant) { return unpack<decltype(constant)::value>; });
}

}  // namespace eagre
