#include "vectors/hadamard.h"

#include "isa/isa.h"
#include "isa/swapped_lanes.h"

namespace eagre {
namespace {

constexpr int kLanes = 16;

// Of the lanes i and i ^ kBit, the one without the bit becomes their sum, and the other one their difference.
template <int kBit>
inline Floats sums_and_differences(const Floats& x) {
  static constexpr auto sign = [](int lane) { return (lane & kBit) != 0 ? -1.0f : 1.0f; };
  alignas(64) static constexpr float signs[kLanes] = {sign(0), sign(1), sign(2),  sign(3),  sign(4),  sign(5),  sign(6),  sign(7),
                                                      sign(8), sign(9), sign(10), sign(11), sign(12), sign(13), sign(14), sign(15)};
  return fma(x, load(signs), swapped_lanes<kBit>(x));
}

// Transforms the features of so many vectors, in registers.
template <int kVectors>
inline void transform(const float* x, const Floats& scale, float* to) {
  Floats v[kVectors];
  EAGRE_UNROLL(4)
  for (int i = 0; i < kVectors; ++i) {
    const Floats of_fours = sums_and_differences<2>(sums_and_differences<1>(mul(load(x + i * kLanes), scale)));
    v[i] = sums_and_differences<8>(sums_and_differences<4>(of_fours));
  }
  EAGRE_UNROLL(2)
  for (int half = 1; half < kVectors; half *= 2) {
    EAGRE_UNROLL(4)
    for (int i = 0; i < kVectors; ++i) {
      if ((i & half) != 0) continue;
      const Floats a = v[i], b = v[i + half];
      v[i] = add(a, b);
      v[i + half] = sub(a, b);
    }
  }
  EAGRE_UNROLL(4)
  for (int i = 0; i < kVectors; ++i) store(to + i * kLanes, v[i]);
}

// The inverse of the root of a power of two.
inline float inverse_root(int64_t block) {
  const int exponent = __builtin_ctzll(static_cast<uint64_t>(block));
  const float whole = 1.0f / static_cast<float>(int64_t{1} << exponent / 2);
  return exponent % 2 == 0 ? whole : whole * 0.707106781f;
}

}  // namespace

void hadamard(const float* x, int64_t head_dim, float* to) {
  const int64_t block = head_dim & -head_dim;
  const Floats scale = broadcast(inverse_root(block));
  const int64_t at_once = block < 4 * kLanes ? block : 4 * kLanes;
  for (int64_t i = 0; i < head_dim; i += at_once) {
    switch (at_once / kLanes) {
      case 4: transform<4>(x + i, scale, to + i); break;
      case 2: transform<2>(x + i, scale, to + i); break;
      default: transform<1>(x + i, scale, to + i);
    }
  }
  for (int64_t half = at_once; half < block; half *= 2) {
    for (int64_t first = 0; first < head_dim; first += 2 * half) {
      for (int64_t i = first; i < first + half; i += kLanes) {
        const Floats a = load(to + i), b = load(to + i + half);
        store(to + i, add(a, b));
        store(to + i + half, sub(a, b));
      }
    }
  }
}

}  // namespace eagre
