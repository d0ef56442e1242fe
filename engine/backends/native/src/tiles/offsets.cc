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

constexpr int kGroupsAtOnce = 64;  // whose sums are kept for all rows

// Adds the products of the sums of some groups with the offsets of the rows from kMarkRows * i on. A row without an offset,
// and one that is none, goes along: its offset is 0, or nobody reads what becomes of it.
void add_to_rows(const PackedRows& x, int i, const int32_t* groups, int num_groups, const float* sums, float* totals) {
  Floats of_rows[kMarkRows];
  bool is_loaded = false;
  for (int g = 0; g < num_groups; ++g) {
    if (x.offset_marks(groups[g], i) == 0) continue;
    if (!is_loaded) {
      EAGRE_UNROLL(8)
      for (int r = 0; r < kMarkRows; ++r) of_rows[r] = load(totals + r * kTile);
      is_loaded = true;
    }
    const Floats sum = load(sums + g * kTile);
    const float* const offsets = x.offsets(groups[g], i);
    EAGRE_UNROLL(8)
    for (int r = 0; r < kMarkRows; ++r) of_rows[r] = fma(sum, broadcast(offsets[r]), of_rows[r]);
  }
  if (!is_loaded) return;
  EAGRE_UNROLL(8)
  for (int r = 0; r < kMarkRows; ++r) store(totals + r * kTile, of_rows[r]);
}

template <Format F>
void add_offsets(const PackedRows& x, const std::byte* tile, float* totals) {
  alignas(64) float sums[kGroupsAtOnce * kTile];
  int32_t groups[kGroupsAtOnce];
  for (int next = 0; next < x.num_offset_groups();) {
    int count = 0;
    for (; next < x.num_offset_groups() && count < kGroupsAtOnce; ++next) {
      const int group = x.offset_groups()[next];
      if (!has_marks(x, group)) continue;  // it is a row of another thread that has an offset there
      groups[count] = group;
      store(sums + count++ * kTile, sum_of_weights<F>(tile, group));
    }
    for (int first = 0; first < x.num_rows(); first += kMarkRows) {
      add_to_rows(x, first / kMarkRows, groups, count, sums, totals + first * kTile);
    }
  }
}

}  // namespace

OffsetKernel offset_kernel_of(Format format) {
  return kernel_of_integers<OffsetKernel>(format, [](auto constant) { return add_offsets<decltype(constant)::value>; });
}

}  // namespace eagre
