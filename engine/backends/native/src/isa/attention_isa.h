// What attention alone needs of the instruction set, beside isa.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "isa/isa.h"

namespace eagre {

#ifdef __AVX512F__
constexpr int kNumFloatsRegisters = 32;  // how many `Floats` the processor keeps in registers
#else
constexpr int kNumFloatsRegisters = 8;
#endif

#ifdef __AVX512F__
// Keeps what was loaded in its register: GCC would load it once more for each row that it is multiplied with, and loads are
// what bounds a product of few rows.
inline __m512i kept(__m512i x) {
  asm("" : "+v"(x));
  return x;
}
#else
template <class Loaded>
inline Loaded kept(Loaded x) {
  return x;
}
#endif

// Whether pairs of bfloat16 become float32 as products load them, and not before, a block at a time. Where registers are
// few, a number of the block meets few rows each time that it is loaded, and blocks of float32 would be twice as much to
// load, and fill the first cache. (Plain C++ goes the other way, so that both are tested on every machine.)
#if (defined(__AVX2__) && !defined(__AVX512F__)) || (defined(__ARM_NEON) && defined(__aarch64__))
constexpr bool kWidensInProducts = true;
#else
constexpr bool kWidensInProducts = false;
#endif

// Whether pages of integers are multiplied as integers: the other side of the product has as many bits, and sums are exact.
#if defined(__ARM_NEON) && defined(__aarch64__)
#define EAGRE_MULTIPLIES_INTEGERS 0
#else
#define EAGRE_MULTIPLIES_INTEGERS 1
#endif
constexpr bool kMultipliesIntegers = EAGRE_MULTIPLIES_INTEGERS;

// Whether a pair of integers of 16 bits takes as long as one float32.
#ifdef __AVX2__
constexpr bool kHasFastPairs = true;
#else
constexpr bool kHasFastPairs = false;
#endif

// 2^x for x from 0 to 1, by a polynomial whose largest relative error, 3 parts in a million, is as small as possible; 1 for 0.
inline Floats coarse_power(Floats x) {
  Floats y = broadcast(0.0134267009f);
  y = fma(y, x, broadcast(0.0522424475f));
  y = fma(y, x, broadcast(0.241280217f));
  y = fma(y, x, broadcast(0.693044843f));
  return fma(y, x, broadcast(1.0f));
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)

// A register of integers: pairs of 16 bits, four bytes a word, or their products added up, int32.
using PairLanes = __m512i;
constexpr int kPairLanes = 16;
inline PairLanes no_sums() { return _mm512_setzero_si512(); }
inline PairLanes broadcast_sum(int32_t x) { return broadcast_int(x); }
inline PairLanes load_pairs(const uint32_t* p) { return load_words(p); }
inline PairLanes broadcast_pair(const std::byte* p) {
  return _mm512_set1_epi32(*static_cast<const Word*>(static_cast<const void*>(p)));
}
// Two products a lane, added to a sum.
inline PairLanes add_products(PairLanes sum, PairLanes a, PairLanes b) { return _mm512_dpwssd_epi32(sum, a, b); }
// Four products of bytes a lane, added to a sum: of bytes without a sign and int8.
constexpr int kByteParts = 1;
template <int>
inline PairLanes load_bytes_without_sign(const uint32_t* p) { return load_words(p); }
template <int>
inline PairLanes load_bytes_with_sign(const uint32_t* p) { return load_words(p); }
inline PairLanes add_byte_products(PairLanes sum, PairLanes without_sign, PairLanes with_sign) {
  return _mm512_dpbusd_epi32(sum, without_sign, with_sign);
}
// Rounds 64 numbers, which are not negative, and stores them as factors of such products, of more than 255 this.
inline void store_byte_factors(std::byte* p, const Floats (&x)[4]) {
  const auto both = [](Floats a, Floats b) { return _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b)); };
  const __m512i mixed = _mm512_packus_epi16(both(x[0], x[1]), both(x[2], x[3]));  // within 128 bits
  _mm512_storeu_si512(p, _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), mixed));
}
// On AVX2 this keeps a sum in its register. Here one instruction multiplies and adds, and GCC would put the sums into memory
// for it.
inline void settle(PairLanes&) {}
// Sums times `scale`, and each times a scale of its own.
inline void store_scaled(PairLanes sums, float scale, const float* scales, float* to) {
  store(to, mul(mul(to_floats(sums), broadcast(scale)), load(scales)));
}
// The same, with something added to each.
inline void store_scaled(PairLanes sums, float scale, const float* scales, const float* addends, float* to) {
  store(to, fma(mul(to_floats(sums), broadcast(scale)), load(scales), load(addends)));
}
// What is there is multiplied with `shrink`, and the sums times `scale` are added.
inline void shrink_and_add(PairLanes sums, float scale, float shrink, float* to) {
  store(to, fma(to_floats(sums), broadcast(scale), mul(load(to), broadcast(shrink))));
}
// Rounds to nearest even and stores 16 numbers of 16 bits, within which the values lie.
inline void store_16_bits(int16_t* p, Floats x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)));
}

// The first and the second bfloat16 of each word.
inline Floats first_halves(Words pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline Floats second_halves(Words pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// 2^x for x <= 8, to 3 parts in a million, which is enough where bfloat16 or an integer of 16 bits is made of it; 1 for 0,
// 0 for -infinity, NaN for NaN.
#define EAGRE_HAS_COARSE_EXP2
inline Floats coarse_exp2(Floats x) {
  const Floats r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  return _mm512_scalef_ps(coarse_power(r), x);  // y * 2^floor(x)
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

// As with AVX-512. To 2^floor(x) the exponent of y is added; that of -127, where no bit of 1 is left, is 0.
#define EAGRE_HAS_COARSE_EXP2
inline Floats coarse_exp2(Floats x) {
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const Floats bounded = max(broadcast(-127.0f), x);  // of a NaN, max gives its second operand
  const Floats whole = {_mm256_round_ps(bounded.low, kDown), _mm256_round_ps(bounded.high, kDown)};
  const Floats y = coarse_power(sub(bounded, whole));
  const auto scaled = [](__m256 half, __m256 exponent) {
    const __m256i places = _mm256_slli_epi32(_mm256_cvtps_epi32(exponent), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(half), places));
  };
  return {scaled(y.low, whole.low), scaled(y.high, whole.high)};
}

using PairLanes = __m256i;
constexpr int kPairLanes = 8;
inline PairLanes no_sums() { return _mm256_setzero_si256(); }
inline PairLanes broadcast_sum(int32_t x) { return broadcast_half_int(x); }
inline PairLanes load_pairs(const uint32_t* p) { return load_half_words(p); }
inline PairLanes broadcast_pair(const std::byte* p) { return broadcast_half_word(p); }
inline PairLanes add_products(PairLanes sum, PairLanes a, PairLanes b) {
#ifdef __AVXVNNI__
  return _mm256_dpwssd_avx_epi32(sum, a, b);
#else
  return add_half_ints(sum, _mm256_madd_epi16(a, b));
#endif
}
#ifdef __AVXVNNI__
constexpr int kByteParts = 1;
template <int>
inline PairLanes load_bytes_without_sign(const uint32_t* p) { return load_half_words(p); }
template <int>
inline PairLanes load_bytes_with_sign(const uint32_t* p) { return load_half_words(p); }
inline PairLanes add_byte_products(PairLanes sum, PairLanes without_sign, PairLanes with_sign) {
  return _mm256_dpbusd_avx_epi32(sum, without_sign, with_sign);
}
inline void store_byte_factors(std::byte* p, const Floats (&x)[4]) {
  const auto narrowed = [](Floats a) { return _mm256_packs_epi32(_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)); };
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // of what is mixed within 128 bits
  for (int i = 0; i < 4; i += 2) {
    const __m256i mixed = _mm256_packus_epi16(narrowed(x[i]), narrowed(x[i + 1]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16 * i), _mm256_permutevar8x32_epi32(mixed, order));
  }
}
#else
// The sum of two products of bytes would not fit 16 bits. So a word of four bytes is multiplied in two parts, as numbers of
// 16 bits: those in even places and those in odd ones.
constexpr int kByteParts = 2;
template <int kPart>
inline PairLanes load_bytes_without_sign(const uint32_t* p) {
  const __m256i words = load_half_words(p);
  return kPart == 0 ? _mm256_and_si256(words, _mm256_set1_epi16(0xff)) : _mm256_srli_epi16(words, 8);
}
template <int kPart>
inline PairLanes load_bytes_with_sign(const uint32_t* p) {
  const __m256i words = load_half_words(p);
  return _mm256_srai_epi16(kPart == 0 ? _mm256_slli_epi16(words, 8) : words, 8);
}
inline PairLanes add_byte_products(PairLanes sum, PairLanes a, PairLanes b) { return add_products(sum, a, b); }
inline void store_byte_factors(std::byte* p, const Floats (&x)[4]) {
  constexpr int kSwap = 0b11'01'10'00;
  for (int i = 0; i < 4; ++i) {
    const __m256i whole = _mm256_packs_epi32(_mm256_cvtps_epi32(x[i].low), _mm256_cvtps_epi32(x[i].high));
    const __m256i mixed = _mm256_min_epi16(whole, _mm256_set1_epi16(255));
    // Of each four, the first and the third stand together, and then the second and the fourth.
    const __m256i in_parts = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(mixed, kSwap), kSwap);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32 * i), _mm256_permute4x64_epi64(in_parts, kSwap));
  }
}
#endif
// A sum stands in its register here: GCC would add up in another order, for which it has too few registers.
inline void settle(PairLanes& sum) { asm volatile("" : "+x"(sum)); }
inline void store_scaled(PairLanes sums, float scale, const float* scales, float* to) {
  store_half(to, _mm256_mul_ps(_mm256_mul_ps(to_half_floats(sums), broadcast_half(scale)), load_half(scales)));
}
inline void store_scaled(PairLanes sums, float scale, const float* scales, const float* addends, float* to) {
  store_half(to, fma_half(_mm256_mul_ps(to_half_floats(sums), broadcast_half(scale)), load_half(scales), load_half(addends)));
}
inline void shrink_and_add(PairLanes sums, float scale, float shrink, float* to) {
  store_half(to, fma_half(to_half_floats(sums), broadcast_half(scale), mul_half(load_half(to), shrink)));
}
inline void store_16_bits(int16_t* p, Floats x) {
  const __m256i mixed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high));  // within 128 bits
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0b11'01'10'00));
}

#elif defined(__ARM_NEON) && defined(__aarch64__)

constexpr int kByteParts = 1;
inline Floats first_halves(const Words& pairs) {
  return parts<Floats>([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(pairs.part[i], 16)); });
}
inline Floats second_halves(const Words& pairs) {
  return parts<Floats>([&](int i) { return vreinterpretq_f32_u32(vandq_u32(pairs.part[i], vdupq_n_u32(0xffff0000u))); });
}
inline void store_16_bits(int16_t* p, const Floats& x) {
  for (int i = 0; i < 4; ++i) vst1_s16(p + 4 * i, vqmovn_s32(vcvtnq_s32_f32(x.part[i])));
}

#else

inline Floats first_halves(const Words& pairs) {
  return lanes<Floats>([&](int i) { return same_bits<float>(pairs.lane[i] << 16); });
}
inline Floats second_halves(const Words& pairs) {
  return lanes<Floats>([&](int i) { return same_bits<float>(pairs.lane[i] & 0xffff0000u); });
}
using PairLanes = Ints;
constexpr int kPairLanes = 16;
inline PairLanes no_sums() { return broadcast_int(0); }
inline PairLanes broadcast_sum(int32_t x) { return broadcast_int(x); }
inline PairLanes load_pairs(const uint32_t* p) {
  return lanes<PairLanes>([&](int i) { return same_bits<int32_t>(p[i]); });
}
inline PairLanes broadcast_pair(const std::byte* p) {
  int32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return broadcast_int(pair);
}
[[gnu::noinline]] inline PairLanes add_products(const PairLanes& sum, const PairLanes& a, const PairLanes& b) {
  const auto first = [](int32_t pair) { return int32_t{static_cast<int16_t>(pair & 0xffff)}; };
  const auto second = [](int32_t pair) { return int32_t{static_cast<int16_t>(pair >> 16)}; };
  return lanes<PairLanes>([&](int i) {
    return sum.lane[i] + first(a.lane[i]) * first(b.lane[i]) + second(a.lane[i]) * second(b.lane[i]);
  });
}
constexpr int kByteParts = 1;
template <int>
inline PairLanes load_bytes_without_sign(const uint32_t* p) { return load_pairs(p); }
template <int>
inline PairLanes load_bytes_with_sign(const uint32_t* p) { return load_pairs(p); }
[[gnu::noinline]] inline PairLanes add_byte_products(const PairLanes& sum, const PairLanes& without_sign,
                                                     const PairLanes& with_sign) {
  return lanes<PairLanes>([&](int i) {
    int32_t all = sum.lane[i];
    for (int at = 0; at < 32; at += 8) {
      all += (without_sign.lane[i] >> at & 255) * static_cast<int8_t>(with_sign.lane[i] >> at & 255);
    }
    return all;
  });
}
inline void store_byte_factors(std::byte* p, const Floats (&x)[4]) {
  for (int v = 0; v < 4; ++v) {
    const Ints whole = to_nearest_ints(x[v]);
    for (int i = 0; i < 16; ++i) p[16 * v + i] = static_cast<std::byte>(std::min(whole.lane[i], 255));
  }
}
inline void settle(PairLanes&) {}
inline void store_scaled(const PairLanes& sums, float scale, const float* scales, float* to) {
  store(to, mul(mul(to_floats(sums), broadcast(scale)), load(scales)));
}
inline void store_scaled(const PairLanes& sums, float scale, const float* scales, const float* addends, float* to) {
  store(to, fma(mul(to_floats(sums), broadcast(scale)), load(scales), load(addends)));
}
inline void shrink_and_add(const PairLanes& sums, float scale, float shrink, float* to) {
  store(to, fma(to_floats(sums), broadcast(scale), mul(load(to), broadcast(shrink))));
}
inline void store_16_bits(int16_t* p, const Floats& x) {
  const Ints whole = to_nearest_ints(x);
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int16_t>(whole.lane[i]);
}

#endif

#endif

}  // namespace eagre
