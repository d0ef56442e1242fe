// What attention alone needs of the instruction set, beside isa.h.
#pragma once

#include "isa/isa.h"

namespace eagre {

#ifdef __AVX512F__
constexpr int kNumFloatsRegisters = 32;  // how many `Floats` the processor keeps in registers
#else
constexpr int kNumFloatsRegisters = 8;
#endif

// Whether pairs of bfloat16 become float32 as products load them, and not before, a block at a time. Where registers are
// few, a number of the block meets few rows each time that it is loaded, and blocks of float32 would be twice as much to
// load, and fill the first cache. (Plain C++ goes the other way, so that both are tested on every machine.)
#if (defined(__AVX2__) && !defined(__AVX512F__)) || (defined(__ARM_NEON) && defined(__aarch64__))
constexpr bool kWidensInProducts = true;
#else
constexpr bool kWidensInProducts = false;
#endif

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)

// The first and the second bfloat16 of each word.
inline Floats first_halves(Words pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline Floats second_halves(Words pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// 2^x for x <= 0, to 3 parts in a million, which is enough where bfloat16 is made of it; 1 for 0, 0 for -infinity, NaN for
// NaN. The fraction of x, from 0 to 1, goes through a polynomial whose largest relative error is as small as possible.
#define EAGRE_HAS_COARSE_EXP2
inline Floats coarse_exp2(Floats x) {
  const Floats r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  Floats y = broadcast(0.0134267009f);
  y = fma(y, r, broadcast(0.0522424475f));
  y = fma(y, r, broadcast(0.241280217f));
  y = fma(y, r, broadcast(0.693044843f));
  y = fma(y, r, broadcast(1.0f));
  return _mm512_scalef_ps(y, x);  // y * 2^floor(x)
}

#else

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

inline Floats first_halves(Words pairs) {
  return as_floats({_mm256_slli_epi32(pairs.low, 16), _mm256_slli_epi32(pairs.high, 16)});
}
inline Floats second_halves(Words pairs) {
  const __m256i top = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return as_floats({_mm256_and_si256(pairs.low, top), _mm256_and_si256(pairs.high, top)});
}

#elif defined(__ARM_NEON) && defined(__aarch64__)

inline Floats first_halves(const Words& pairs) {
  return parts<Floats>([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(pairs.part[i], 16)); });
}
inline Floats second_halves(const Words& pairs) {
  return parts<Floats>([&](int i) { return vreinterpretq_f32_u32(vandq_u32(pairs.part[i], vdupq_n_u32(0xffff0000u))); });
}

#else

inline Floats first_halves(const Words& pairs) {
  return lanes<Floats>([&](int i) { return same_bits<float>(pairs.lane[i] << 16); });
}
inline Floats second_halves(const Words& pairs) {
  return lanes<Floats>([&](int i) { return same_bits<float>(pairs.lane[i] & 0xffff0000u); });
}

#endif

#endif

}  // namespace eagre
