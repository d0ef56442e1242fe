// Tiles of weights that are floats.
#include "tiles/tile_kernel.h"

#include <algorithm>

#include "isa/isa.h"
#include "tiles/stream.h"

namespace eagre {
namespace {

template <Format F, int R>
void accumulate(const std::byte* weights, const std::byte* values, int num_groups, float* totals) {
  constexpr int kPerVector = F == Format::kBfloat16 ? 2 : 1;  // inputs that one vector of weights holds
  constexpr int kVectorBytes = F == Format::kFloat16 ? 32 : 64;
  constexpr int kBytes = static_cast<int>(group_bytes(layout_of(F).activations));
  Floats total[R];
  for (int r = 0; r < R; ++r) total[r] = load(totals + r * kTile);
  for (int g = 0; g < num_groups; ++g, values += R * kBytes) {
    for (int i = 0; i < kGroup / kPerVector; ++i, weights += kVectorBytes) {
      prefetch(weights + kBytesAhead);  // what is best for integers was measured for them alone
      const std::byte* x = values + i * 4;
      if constexpr (F == Format::kBfloat16) {
        const Words w = load_words(weights);
        EAGRE_UNROLL(16)
        for (int r = 0; r < R; ++r) total[r] = dot2(total[r], w, x + r * kBytes);
      } else {
        const Floats w = F == Format::kFloat16 ? load_halves(weights) : as_floats(load_words(weights));
        EAGRE_UNROLL(16)
        for (int r = 0; r < R; ++r) {
          total[r] = fma(w, broadcast(*reinterpret_cast<const float*>(x + r * kBytes)), total[r]);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) store(totals + r * kTile, total[r]);
}

// The groups of a tile from `first` on.
template <Format F>
void add_groups(const PackedRows& x, const std::byte* weights, int first, int num_groups, float* totals) {
  constexpr Activations kKind = layout_of(F).activations;
  for (int block = 0; block < x.num_blocks(); ++block) {
    const int rows = x.rows_of(block);
    const std::byte* values = x.values(kKind, block) + size_t{1} * first * rows * group_bytes(kKind);
    with_rows(rows, [&](auto constant) {
      accumulate<F, decltype(constant)::value>(weights, values, num_groups,
                                               totals + size_t{1} * block * kBlockRows * kTile);
    });
  }
}

template <Format F>
void multiply_tile_of(const PackedRows& x, const std::byte* tile, UnpackedGroup*, float* totals) {
  const int num_groups = x.num_groups();
  const int chunk = x.num_blocks() > 1 ? kChunkGroups : num_groups;
  for (int first = 0; first < num_groups; first += chunk) {
    add_groups<F>(x, tile + first * block_bytes(F), first, std::min(chunk, num_groups - first), totals);
  }
}

}  // namespace

void add_bfloat16_groups(const PackedRows& x, const std::byte* weights, int first, int num_groups, float* totals) {
  add_groups<Format::kBfloat16>(x, weights, first, num_groups, totals);
}

TileKernel float_kernel_of(Format format) {
  switch (format) {
    case Format::kFloat32: return multiply_tile_of<Format::kFloat32>;
    case Format::kFloat16: return multiply_tile_of<Format::kFloat16>;
    default: return multiply_tile_of<Format::kBfloat16>;
  }
}

}  // namespace eagre
