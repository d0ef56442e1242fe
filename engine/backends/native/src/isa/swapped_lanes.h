// Lanes that change places in pairs.
#pragma once

#include "isa/isa.h"

namespace eagre {

// Lane i of the result is lane i ^ kBit of x; kBit is 1, 2, 4 or 8.
template <int kBit>
inline Floats swapped_lanes(const Floats& x) {
  static_assert(kBit == 1 || kBit == 2 || kBit == 4 || kBit == 8);
#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (kBit == 8) return _mm512_shuffle_f32x4(x, x, 0b01'00'11'10);
  if constexpr (kBit == 4) return _mm512_shuffle_f32x4(x, x, 0b10'11'00'01);
  return _mm512_permute_ps(x, kBit == 2 ? 0b01'00'11'10 : 0b10'11'00'01);
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
  if constexpr (kBit == 8) return {x.high, x.low};
  if constexpr (kBit == 4) return {_mm256_permute2f128_ps(x.low, x.low, 1), _mm256_permute2f128_ps(x.high, x.high, 1)};
  constexpr int order = kBit == 2 ? 0b01'00'11'10 : 0b10'11'00'01;
  return {_mm256_permute_ps(x.low, order), _mm256_permute_ps(x.high, order)};
#elif defined(__ARM_NEON) && defined(__aarch64__)
  return parts<Floats>([&](int i) {
    if constexpr (kBit >= 4) return x.part[i ^ (kBit / 4)];
    if constexpr (kBit == 2) return vextq_f32(x.part[i], x.part[i], 2);
    return vrev64q_f32(x.part[i]);
  });
#else
  return lanes<Floats>([&](int i) { return x.lane[i ^ kBit]; });
#endif
}

}  // namespace eagre
