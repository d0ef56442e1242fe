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
      prefetch(weights + kPrefetchBytes);
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

template <Format F>
void multiply_tile(const PackedRows& x, const std::byte* tile, UnpackedGroup*, float* totals) {
  constexpr Activations kKind = layout_of(F).activations;
  const int num_groups = x.num_groups(), num_blocks = x.num_blocks();
  const int chunk = num_blocks > 1 ? kChunkGroups : num_groups;
  for (int first = 0; first < num_groups; first += chunk) {
    const int count = std::min(chunk, num_groups - first);
    const std::byte* weights = tile + first * block_bytes(F);
    for (int block = 0; block < num_blocks; ++block) {
      const int rows = x.rows_of(block);
      const std::byte* values = x.values(kKind, block) + size_t{1} * first * rows * group_bytes(kKind);
      with_rows(rows, [&](auto constant) {
        accumulate<F, decltype(constant)::value>(weights, values, count, totals + size_t{1} * block * kBlockRows * kTile);
      });
    }
  }
}

}  // namespace

TileKernel float_kernel_of(Format format) {
  switch (format) {
    case Format::kFloat32: return multiply_tile<Format::kFloat32>;
    case Format::kFloat16: return multiply_tile<Format::kFloat16>;
    default: return multiply_tile<Format::kBfloat16>;
  }
}

}  // namespace eagre
