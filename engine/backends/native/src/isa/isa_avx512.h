// Sixteen lanes on AVX-512 with VNNI (Ice Lake, Zen 4 and later), and BF16 where it is there.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace eagre {

using Floats = __m512;  // 16 float32
using Ints = __m512i;   // 16 int32
using Words = __m512i;  // 64 bytes: 16 lanes of 4 bytes or of 2 bfloat16
using Mask = __mmask16;

inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline Words load_words(const void* p) { return _mm512_loadu_si512(p); }
inline void store_words(void* p, Words x) { _mm512_storeu_si512(p, x); }
inline Floats broadcast(float x) { return _mm512_set1_ps(x); }
inline Ints broadcast_int(int32_t x) { return _mm512_set1_epi32(x); }
inline Floats zeros() { return _mm512_setzero_ps(); }

inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats abs(Floats a) { return _mm512_abs_ps(a); }
inline float sum(Floats a) { return _mm512_reduce_add_ps(a); }
inline float largest(Floats a) { return _mm512_reduce_max_ps(a); }

// The first `count` lanes of x, `other` in the rest; count 0 to 16.
inline Floats first_lanes(Floats x, int count, Floats other) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>((1u << count) - 1), other, x);
}

inline Mask at_least(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }  // a >= b
inline Mask both(Mask a, Mask b) { return a & b; }
inline Mask mask_of(uint32_t bits) { return static_cast<Mask>(bits); }  // the lowest bit is the first lane
inline uint32_t bits_of(Mask mask) { return mask; }
inline Floats choose(Mask mask, Floats x, Floats other) { return _mm512_mask_blend_ps(mask, other, x); }

// Stores the lanes whose bits are set one after the other, and anything in what is left of 16; returns how many.
#define EAGRE_HAS_STORE_CHOSEN
inline int store_chosen(float* p, uint32_t bits, Floats x) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(static_cast<Mask>(bits), x));
  return __builtin_popcount(bits);
}

// Of magnitudes below 2^22; of all else, anything.
inline Ints to_nearest_ints(Floats a) { return _mm512_cvtps_epi32(a); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
inline Floats as_floats(Words x) { return _mm512_castsi512_ps(x); }  // the same bits
inline Ints load_ints(const int32_t* p) { return load_words(p); }
inline Floats load_halves(const void* p) {  // 16 IEEE float16
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline Floats load_bytes(const int8_t* p) {  // 16 int8
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// Rounds to nearest even and stores 16 int8; the values lie within int8.
inline void store_bytes(int8_t* p, Floats x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}

// x * 2^n for a whole n of -150 to 8.
inline Floats times_power_of_two(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }
inline Floats round_to_integer(Floats x) { return _mm512_roundscale_ps(x, 0); }

// bfloat16, rounded to nearest even.
inline void store_bf16(uint16_t* p, Floats x) {
#ifdef __AVX512BF16__
  const __m256i half = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
#else
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  // Rounding could carry a NaN over into an infinity or a number.
  rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc00000));
  const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
}
inline Floats load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// Pairs of bfloat16, rounded to nearest even: the first ones in the low halves of the lanes.
inline Words bf16_pairs(Floats first, Floats second) {
#ifdef __AVX512BF16__
  const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  alignas(64) static constexpr uint16_t kInTurn[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kInTurn), both);
#else
  uint16_t halves[2][16];
  store_bf16(halves[0], first);
  store_bf16(halves[1], second);
  const auto wide = [](const uint16_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  };
  return _mm512_or_si512(wide(halves[0]), _mm512_slli_epi32(wide(halves[1]), 16));
#endif
}

// One byte of each lane, 0 to 255.
template <int kByte>
inline Ints byte_of(Words x) {
  const __m512i moved = _mm512_srli_epi32(x, 8 * kByte);
  return kByte == 3 ? moved : _mm512_and_si512(moved, _mm512_set1_epi32(255));
}

// Those bits of each byte that `mask` has, shifted to the left, or of a negative kLeft to the right, so far that none of
// them leaves its byte.
template <int kLeft>
inline Words shifted_bits(Words x, int mask) {
  const Words moved = kLeft >= 0 ? _mm512_slli_epi16(x, kLeft >= 0 ? kLeft : 0) : _mm512_srli_epi16(x, kLeft < 0 ? -kLeft : 0);
  return _mm512_and_si512(moved, _mm512_set1_epi8(static_cast<char>(mask)));
}
// Of each byte, which is below 16, the one that it is the index of.
inline Words looked_up(Words x, const uint8_t (&table)[16]) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), x);
}
// 2^(byte - 128) of 16 bytes; below 2, the bits of numbers that are not normal.
inline Floats half_powers_of_two(const void* p) {
  const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), e);
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
  return _mm512_castsi512_ps(_mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(e, _mm512_set1_epi32(1)), small, normal));
}
inline Words either(Words a, Words b) { return _mm512_or_si512(a, b); }

// A word in memory that may belong to an object of another type. It is read through a pointer, so that the instruction
// that broadcasts it reads it itself.
using Word = int32_t __attribute__((may_alias, aligned(1)));

// Four products a lane, of unsigned bytes with the four signed bytes at `b`, added to `a`.
template <bool kSmall>  // the unsigned bytes are below 128
inline Ints dot4(Ints a, Words bytes, const void* b) {
  return _mm512_dpbusd_epi32(a, bytes, _mm512_set1_epi32(*static_cast<const Word*>(b)));
}

// What products of pairs need: see tiles/pair_products.cc.
#define EAGRE_HAS_PAIR_PRODUCTS
inline Words add_bytes(Words a, Words b) { return _mm512_add_epi8(a, b); }
inline Words broadcast_byte(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
inline Words broadcast_word(const void* p) { return _mm512_set1_epi32(*static_cast<const Word*>(p)); }
inline Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints sub_ints(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
// Four products a lane, of unsigned bytes with signed ones, added to `a`.
inline Ints dot4_words(Ints a, Words bytes, Words others) { return _mm512_dpbusd_epi32(a, bytes, others); }

// Two products a lane, of pairs of bfloat16 with the pair at `b`, added to `a`.
inline Floats dot2(Floats a, Words pairs, const void* b) {
  const __m512i other = _mm512_set1_epi32(*static_cast<const Word*>(b));
#ifdef __AVX512BF16__
  return _mm512_dpbf16_ps(a, reinterpret_cast<__m512bh>(pairs), reinterpret_cast<__m512bh>(other));
#else
  const __m512i top = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const auto even = [](__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); };
  const auto odd = [&](__m512i x) { return _mm512_castsi512_ps(_mm512_and_si512(x, top)); };
  return fma(odd(pairs), odd(other), fma(even(pairs), even(other), a));
#endif
}

// Transposes 16 rows of `quarters` times 16 bytes, as 4-byte words: out[i] holds word i of each row.
inline void transpose_words(const uint8_t* const* rows, int quarters, uint8_t* out, size_t out_stride) {
  for (int q = 0; q < quarters; ++q) {
    const auto part = [&](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + q * 16)); };
    __m512i x[4];
    for (int i = 0; i < 4; ++i) {  // the 128-bit lane L holds row 4 L + i
      x[i] = _mm512_castsi128_si512(part(i));
      x[i] = _mm512_inserti32x4(x[i], part(4 + i), 1);
      x[i] = _mm512_inserti32x4(x[i], part(8 + i), 2);
      x[i] = _mm512_inserti32x4(x[i], part(12 + i), 3);
    }
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    uint8_t* to = out + q * 4 * out_stride;
    store_words(to, _mm512_unpacklo_epi64(a, c));
    store_words(to + out_stride, _mm512_unpackhi_epi64(a, c));
    store_words(to + 2 * out_stride, _mm512_unpacklo_epi64(b, d));
    store_words(to + 3 * out_stride, _mm512_unpackhi_epi64(b, d));
  }
}

// 16 pairs (first[i], second[i]) of bfloat16.
inline void interleave_bf16(const uint16_t* first, const uint16_t* second, uint32_t* out) {
  const auto wide = [](const uint16_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  };
  store_words(out, _mm512_or_si512(wide(first), _mm512_slli_epi32(wide(second), 16)));
}

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void prefetch_later(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }  // second cache
inline void wait_for_loads() { _mm_lfence(); }  // begins no instruction before all loads so far are done
inline void pause() { _mm_pause(); }

}  // namespace eagre
