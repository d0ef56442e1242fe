// One number of each of 16 vectors.
#pragma once

#include "isa/isa.h"

namespace eagre {

// joined_of_each: lane i of the result is that of all lanes of rows[i], by `join`, which may take them in any order. All
// vectors are halved together.
#ifdef __AVX512F__
#define EAGRE_HAS_JOINED_OF_EACH

template <class Join>
[[gnu::always_inline]] inline Floats joined_of_each(const Floats (&rows)[16], const Join& join) {
  Floats eight[8], four[4], two[2];
  EAGRE_UNROLL(8)
  for (int i = 0; i < 8; ++i) {
    eight[i] = join(_mm512_shuffle_f32x4(rows[i], rows[i + 8], 0x44), _mm512_shuffle_f32x4(rows[i], rows[i + 8], 0xee));
  }
  EAGRE_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    four[i] = join(_mm512_shuffle_f32x4(eight[i], eight[i + 4], 0x88), _mm512_shuffle_f32x4(eight[i], eight[i + 4], 0xdd));
  }
  EAGRE_UNROLL(2)
  for (int i = 0; i < 2; ++i) {
    two[i] = join(_mm512_shuffle_ps(four[i], four[i + 2], 0x44), _mm512_shuffle_ps(four[i], four[i + 2], 0xee));
  }
  const Floats one = join(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd));
  // Lane 4 i + j is that of row 4 order[i] + order[j], with the order 0, 2, 1, 3.
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15), one);
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define EAGRE_HAS_JOINED_OF_EACH

template <class Join>
[[gnu::always_inline]] inline Floats joined_of_each(const Floats (&rows)[16], const Join& join) {
  const auto joined = [&](__m256 a, __m256 b) { return join(Floats{a, a}, Floats{b, b}).low; };
  __m256 eight[8], four[4], two[2];
  EAGRE_UNROLL(8)
  for (int i = 0; i < 8; ++i) {
    const __m256 own = joined(rows[i].low, rows[i].high), other = joined(rows[i + 8].low, rows[i + 8].high);
    eight[i] = joined(_mm256_permute2f128_ps(own, other, 0x20), _mm256_permute2f128_ps(own, other, 0x31));
  }
  EAGRE_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    four[i] = joined(_mm256_unpacklo_ps(eight[i], eight[i + 4]), _mm256_unpackhi_ps(eight[i], eight[i + 4]));
  }
  EAGRE_UNROLL(2)
  for (int i = 0; i < 2; ++i) {
    two[i] = joined(_mm256_shuffle_ps(four[i], four[i + 2], 0x44), _mm256_shuffle_ps(four[i], four[i + 2], 0xee));
  }
  // The lanes are those of rows 0, 4, 2, 6, 8, 12, 10, 14, and of 1, 5, 3, 7, 9, 13, 11, 15.
  const __m256 a = _mm256_unpacklo_ps(two[0], two[1]), b = _mm256_unpackhi_ps(two[0], two[1]);
  const __m256 c = _mm256_shuffle_ps(a, b, 0x44), d = _mm256_shuffle_ps(a, b, 0xee);
  return {_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31)};
}

#endif

#ifdef EAGRE_HAS_JOINED_OF_EACH

// The largest lane of each.
inline Floats largest_of_each(const Floats (&rows)[16]) { return joined_of_each(rows, max); }

// The smallest lane of each.
inline Floats smallest_of_each(const Floats (&rows)[16]) { return joined_of_each(rows, min); }

// The sum of each one's lanes, in an order that is the same for all of them.
inline Floats sum_of_each(const Floats (&rows)[16]) { return joined_of_each(rows, add); }

#else

inline Floats largest_of_each(const Floats (&rows)[16]) {
  alignas(64) float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = largest(rows[i]);
  return load(lanes);
}

inline Floats smallest_of_each(const Floats (&rows)[16]) {
  alignas(64) float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = -largest(sub(zeros(), rows[i]));
  return load(lanes);
}

inline Floats sum_of_each(const Floats (&rows)[16]) {
  alignas(64) float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = sum(rows[i]);
  return load(lanes);
}

#endif

}  // namespace eagre
