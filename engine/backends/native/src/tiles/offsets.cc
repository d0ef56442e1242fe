// Products of tiles of integers with the offsets of rows' groups. A value is scale * byte + offset, so a group's offset
// meets the sum of its weights, which is computed here, because few groups have an offset.
#include <cstddef>
#include <cstdint>

#include "isa/isa.h"
#include "tiles/group.h"
#include "tiles/tile_kernel.h"

namespace eagre {
namespace {

// The sums of the weights of a group of a tile.
template <Format F>
Floats sum_of_weights(const std::byte* tile, int index) {
  constexpr Layout kLayout = layout_of(F);
  constexpr int kVectors = kVectorsOfBytes / kLayout.parts;
  static constexpr int8_t kOnes[4] = {1, 1, 1, 1};
  const BlockReader<F> reader(tile + index / kLayout.block_groups * block_bytes(F));
  typename BlockReader<F>::Group group;
  reader.read(index % kLayout.block_groups, group);
  Floats sum = zeros();
  for (int part = 0; part < kLayout.parts; ++part) {
    Ints numbers = broadcast_int(kLayout.has_minima ? 0 : -kLayout.zero_point * kGroup / kLayout.parts);
    for (int v = part * kVectors; v < (part + 1) * kVectors; ++v) {
      numbers = dot4<shape_of(F).is_small>(numbers, group.numbers[v], kOnes);
    }
    sum = fma(to_floats(numbers), group.scales[part], sum);
    if constexpr (kLayout.has_minima) {
      sum = fma(broadcast(static_cast<float>(kGroup) / kLayout.parts), group.minima[part], sum);
    }
  }
  return sum;
}

bool has_marks(const PackedRows& x, int group) {
  for (int first = 0; first < x.num_rows(); first += kMarkRows) {
    if (x.offset_marks(group, first / kMarkRows) != 0) return true;
  }
  return false;
}

template <Format F>
void add_offsets(const PackedRows& x, const std::byte* tile, float* totals) {
  for (int i = 0; i < x.num_offset_groups(); ++i) {
    const int group = x.offset_groups()[i];
    if (!has_marks(x, group)) continue;  // it is a row of another thread that has an offset there
    const Floats sum = sum_of_weights<F>(tile, group);
    for (int first = 0; first < x.num_rows(); first += kMarkRows) {
      for (uint32_t marks = x.offset_marks(group, first / kMarkRows); marks != 0; marks &= marks - 1) {
        const int row = first + __builtin_ctz(marks);
        float* const total = totals + row * kTile;
        store(total, fma(sum, broadcast(x.offset(row, group)), load(total)));
      }
    }
  }
}

}  // namespace

OffsetKernel offset_kernel_of(Format format) {
  return kernel_of_integers<OffsetKernel>(format, [](auto constant) { return add_offsets<decltype(constant)::value>; });
}

}  // namespace eagre
