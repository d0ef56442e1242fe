// Sixteen lanes as two vectors of eight, on AVX2 with FMA and F16C (Haswell, Zen and later), and AVX-VNNI where it is there
// (Alder Lake, Zen 5 and later).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace eagre {

struct Floats {  // 16 float32
  __m256 low, high;
};
struct Ints {  // 16 int32
  __m256i low, high;
};
using Words = Ints;  // 64 bytes: 16 lanes of 4 bytes or of 2 bfloat16
struct Mask {        // all bits of a lane or none
  __m256 low, high;
};

inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
inline Words load_words(const void* p) {
  const __m256i* from = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
}
inline void store_words(void* p, Words x) {
  __m256i* to = static_cast<__m256i*>(p);
  _mm256_storeu_si256(to, x.low);
  _mm256_storeu_si256(to + 1, x.high);
}
inline Floats broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Ints broadcast_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Floats fma(Floats a, Floats b, Floats c) {  // a * b + c
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
// b where either is no number.
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Floats abs(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline float sum(Floats a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(Floats a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// The first `count` lanes of x, `other` in the rest; count 0 to 16.
inline Floats first_lanes(Floats x, int count, Floats other) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const auto before = [&](int end) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(end), lanes)); };
  return {_mm256_blendv_ps(other.low, x.low, before(count)), _mm256_blendv_ps(other.high, x.high, before(count - 8))};
}

inline Mask at_least(Floats a, Floats b) {  // a >= b
  return {_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ)};
}
inline Mask both(Mask a, Mask b) { return {_mm256_and_ps(a.low, b.low), _mm256_and_ps(a.high, b.high)}; }
inline Mask mask_of(uint32_t bits) {  // the lowest bit is the first lane
  const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
  const auto lanes = [&](int first) {
    const __m256i own = _mm256_sllv_epi32(_mm256_set1_epi32(1 << first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, own), own));
  };
  return {lanes(0), lanes(8)};
}
inline uint32_t bits_of(Mask mask) {
  return static_cast<uint32_t>(_mm256_movemask_ps(mask.low) | _mm256_movemask_ps(mask.high) << 8);
}
inline Floats choose(Mask mask, Floats x, Floats other) {
  return {_mm256_blendv_ps(other.low, x.low, mask.low), _mm256_blendv_ps(other.high, x.high, mask.high)};
}

// Of magnitudes below 2^22; of all else, anything.
inline Ints to_nearest_ints(Floats a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
inline Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline Floats as_floats(Words x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }  // the same bits
inline Ints load_ints(const int32_t* p) { return load_words(p); }
inline Floats load_halves(const void* p) {  // 16 IEEE float16
  const __m128i* from = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from + 1))};
}
inline Floats load_bytes(const int8_t* p) {  // 16 int8
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return to_floats({_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))});
}
// Rounds to nearest even and stores 16 int8; the values lie within int8.
inline void store_bytes(int8_t* p, Floats x) {
  const auto four_bytes_each = [](__m256 half) {  // 8 lanes as 16-bit numbers
    const __m256i wide = _mm256_cvtps_epi32(half);
    return _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  };
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(four_bytes_each(x.low), four_bytes_each(x.high)));
}

inline Floats round_to_integer(Floats x) {  // to nearest even
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, kNearest), _mm256_round_ps(x.high, kNearest)};
}
// x * 2^n for a whole n of -150 to 8: in two steps, of which only the second can leave the normal numbers.
inline Floats times_power_of_two(Floats x, Floats n) {
  const auto half = [](__m256 y, __m256 exponent) {
    const __m256i whole = _mm256_cvtps_epi32(exponent), first = _mm256_srai_epi32(whole, 1);
    const auto power = [](__m256i e) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
    };
    return _mm256_mul_ps(_mm256_mul_ps(y, power(first)), power(_mm256_sub_epi32(whole, first)));
  };
  return {half(x.low, n.low), half(x.high, n.high)};
}

// bfloat16, rounded to nearest even.
inline void store_bf16(uint16_t* p, Floats x) {
  const auto rounded = [](__m256 half) {  // in the low 16 bits of each lane
    const __m256i bits = _mm256_castps_si256(half);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i number = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));  // adding might make NaN a number
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(half, half, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(number, quiet, is_nan), 16);
  };
  const __m256i mixed = _mm256_packus_epi32(rounded(x.low), rounded(x.high));  // within each 128 bits
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0b11'01'10'00));
}
inline Words load_bf16_bits(const uint16_t* p) {  // in the low 16 bits of each lane
  const __m128i* from = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(from)), _mm256_cvtepu16_epi32(_mm_loadu_si128(from + 1))};
}
inline Floats load_bf16(const uint16_t* p) {
  const Words bits = load_bf16_bits(p);
  return as_floats({_mm256_slli_epi32(bits.low, 16), _mm256_slli_epi32(bits.high, 16)});
}

// Pairs of bfloat16, rounded to nearest even: the first ones in the low halves of the lanes.
inline Words bf16_pairs(Floats first, Floats second) {
  uint16_t halves[2][16];
  store_bf16(halves[0], first);
  store_bf16(halves[1], second);
  const Words low = load_bf16_bits(halves[0]), high = load_bf16_bits(halves[1]);
  return {_mm256_or_si256(low.low, _mm256_slli_epi32(high.low, 16)),
          _mm256_or_si256(low.high, _mm256_slli_epi32(high.high, 16))};
}

// One byte of each lane, 0 to 255.
template <int kByte>
inline Ints byte_of(Words x) {
  const auto half = [](__m256i y) { return _mm256_and_si256(_mm256_srli_epi32(y, 8 * kByte), _mm256_set1_epi32(255)); };
  return {half(x.low), half(x.high)};
}

// Those bits of each byte that `mask` has, shifted to the left, or of a negative kLeft to the right, so far that none of
// them leaves its byte.
template <int kLeft>
inline Words shifted_bits(Words x, int mask) {
  const __m256i chosen = _mm256_set1_epi8(static_cast<char>(mask));
  const auto half = [&](__m256i y) {
    const __m256i moved =
        kLeft >= 0 ? _mm256_slli_epi16(y, kLeft >= 0 ? kLeft : 0) : _mm256_srli_epi16(y, kLeft < 0 ? -kLeft : 0);
    return _mm256_and_si256(moved, chosen);
  };
  return {half(x.low), half(x.high)};
}
// Of each byte, which is below 16, the one that it is the index of.
inline Words looked_up(Words x, const uint8_t (&table)[16]) {
  const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(all, x.low), _mm256_shuffle_epi8(all, x.high)};
}
// 2^(byte - 128) of 16 bytes; below 2, the bits of numbers that are not normal.
inline Floats half_powers_of_two(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  const auto half = [](__m256i e) {
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1))));
  };
  return {half(_mm256_cvtepu8_epi32(bytes)), half(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline Words either(Words a, Words b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }

inline int32_t word_at(const void* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// Four products a lane, of unsigned bytes with the four signed bytes at `b`, added to `a`.
template <bool kSmall>  // the unsigned bytes are below 128
inline Ints dot4(Ints a, Words bytes, const void* b) {
  const __m256i other = _mm256_set1_epi32(word_at(b));
#ifdef __AVXVNNI__
  return {_mm256_dpbusd_avx_epi32(a.low, bytes.low, other), _mm256_dpbusd_avx_epi32(a.high, bytes.high, other)};
#else
  const auto dot = [&](__m256i x) {
    if constexpr (kSmall) {  // a sum of two products fits into 16 bits
      return _mm256_madd_epi16(_mm256_maddubs_epi16(x, other), _mm256_set1_epi16(1));
    } else {  // it would not, so bytes 0 and 2, and then 1 and 3, are multiplied as 16-bit numbers
      const __m256i even = _mm256_and_si256(x, _mm256_set1_epi16(0xff)), odd = _mm256_srli_epi16(x, 8);
      const __m256i other_even = _mm256_srai_epi16(_mm256_slli_epi16(other, 8), 8);
      const __m256i other_odd = _mm256_srai_epi16(other, 8);
      return _mm256_add_epi32(_mm256_madd_epi16(even, other_even), _mm256_madd_epi16(odd, other_odd));
    }
  };
  return {_mm256_add_epi32(a.low, dot(bytes.low)), _mm256_add_epi32(a.high, dot(bytes.high))};
#endif
}

// Eight lanes, for loops that need more registers than there are of sixteen.
#define EAGRE_HAS_HALVES
using HalfFloats = __m256;
using HalfWords = __m256i;  // 8 lanes of 4 bytes, of 2 numbers of 16 bits, or of an int32

inline HalfFloats load_half(const float* p) { return _mm256_loadu_ps(p); }
inline void store_half(float* p, HalfFloats x) { _mm256_storeu_ps(p, x); }
inline HalfFloats broadcast_half(float x) { return _mm256_set1_ps(x); }
inline HalfFloats mul_half(HalfFloats a, float b) { return _mm256_mul_ps(a, _mm256_set1_ps(b)); }
inline HalfFloats fma_half(HalfFloats a, HalfFloats b, HalfFloats c) { return _mm256_fmadd_ps(a, b, c); }
inline HalfFloats to_half_floats(HalfWords a) { return _mm256_cvtepi32_ps(a); }
inline HalfWords low_lanes(Words x) { return x.low; }
inline HalfWords high_lanes(Words x) { return x.high; }
inline HalfWords load_half_words(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline HalfWords broadcast_half_int(int32_t x) { return _mm256_set1_epi32(x); }
inline HalfWords broadcast_half_word(const void* p) { return _mm256_set1_epi32(word_at(p)); }
#ifdef __AVXVNNI__
// Four products a lane, of unsigned bytes with int8, added to `a`.
#define EAGRE_HAS_HALF_DOTS
inline HalfWords dot4_half(HalfWords a, HalfWords bytes, HalfWords others) {
  return _mm256_dpbusd_avx_epi32(a, bytes, others);
}
#endif
inline HalfWords magnitudes(HalfWords bytes) { return _mm256_abs_epi8(bytes); }  // of int8, as unsigned bytes
// int8, negated where another int8 is negative, and 0 where that is 0.
inline HalfWords with_signs(HalfWords bytes, HalfWords others) { return _mm256_sign_epi8(bytes, others); }
// The products of unsigned bytes with int8, neighbours added up in 16 bits, which must hold them.
inline HalfWords pairs_of(HalfWords bytes, HalfWords others) { return _mm256_maddubs_epi16(bytes, others); }
inline HalfWords add_pairs(HalfWords a, HalfWords b) { return _mm256_add_epi16(a, b); }
inline HalfWords add_half_ints(HalfWords a, HalfWords b) { return _mm256_add_epi32(a, b); }
// Both halves of each lane of `pairs`, added up to an int32.
inline HalfWords widened(HalfWords pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
inline HalfWords add_widened(HalfWords a, HalfWords pairs) { return add_half_ints(a, widened(pairs)); }
// Nothing that follows is loaded or stored before these two are there: GCC would load for all rows at once, and run out of
// registers.
inline void settle(HalfWords& a, HalfWords& b) { asm volatile("" : "+x"(a), "+x"(b) : : "memory"); }
// What has been stored is loaded again: GCC would keep all of it in registers, which are too few, and store it elsewhere.
inline void settle_memory() { asm volatile("" : : : "memory"); }
// int8 of bytes whose zero is 128.
inline Words less_128(Words bytes) {
  const __m256i top = _mm256_set1_epi8(static_cast<char>(0x80));
  return {_mm256_xor_si256(bytes.low, top), _mm256_xor_si256(bytes.high, top)};
}

// Two products a lane, of pairs of bfloat16 with the pair at `b`, added to `a`.
inline Floats dot2(Floats a, Words pairs, const void* b) {
  const auto even = [](__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); };
  const auto odd = [](__m256i x) {
    return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  };
  const __m256i other = _mm256_set1_epi32(word_at(b));
  const auto dot = [&](__m256 total, __m256i x) {
    return _mm256_fmadd_ps(odd(x), odd(other), _mm256_fmadd_ps(even(x), even(other), total));
  };
  return {dot(a.low, pairs.low), dot(a.high, pairs.high)};
}

// Transposes 16 rows of `quarters` times 16 bytes, as 4-byte words: out[i] holds word i of each row.
inline void transpose_words(const uint8_t* const* rows, int quarters, uint8_t* out, size_t out_stride) {
  for (int q = 0; q < quarters; ++q) {
    const auto part = [&](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + q * 16)); };
    for (int eight = 0; eight < 2; ++eight) {
      __m256i x[4];
      for (int i = 0; i < 4; ++i) {  // the 128-bit lane L holds row 8 eight + 4 L + i
        x[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(part(8 * eight + i)), part(8 * eight + 4 + i), 1);
      }
      const __m256i a = _mm256_unpacklo_epi32(x[0], x[1]), b = _mm256_unpackhi_epi32(x[0], x[1]);
      const __m256i c = _mm256_unpacklo_epi32(x[2], x[3]), d = _mm256_unpackhi_epi32(x[2], x[3]);
      const __m256i words[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d),
                                _mm256_unpackhi_epi64(b, d)};
      for (int i = 0; i < 4; ++i) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + (q * 4 + i) * out_stride + 32 * eight), words[i]);
      }
    }
  }
}

// 16 pairs (first[i], second[i]) of bfloat16.
inline void interleave_bf16(const uint16_t* first, const uint16_t* second, uint32_t* out) {
  const Words a = load_bf16_bits(first), b = load_bf16_bits(second);
  store_words(out, {_mm256_or_si256(a.low, _mm256_slli_epi32(b.low, 16)),
                    _mm256_or_si256(a.high, _mm256_slli_epi32(b.high, 16))});
}

inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void prefetch_later(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }  // second cache
inline void pause() { _mm_pause(); }

}  // namespace eagre
