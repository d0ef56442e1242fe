// Sixteen lanes as plain arrays, for machines without one of the other instruction sets. Compilers can turn the loops
// into whatever vectors there are. Functions of more than a few instructions are not inlined, because kernels that are
// unrolled over rows would take minutes to compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace eagre {

struct Floats {  // 16 float32
  float lane[16];
};
struct Ints {  // 16 int32
  int32_t lane[16];
};
struct Words {  // 64 bytes: 16 lanes of 4 bytes or of 2 bfloat16, the first in the lowest bits
  uint32_t lane[16];
};

struct Mask {  // all bits of a lane or none
  uint32_t lane[16];
};

template <class To, class From>
inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// value(0), ... value(15).
template <class Vector, class Value>
inline Vector lanes(const Value& value) {
  Vector result;
  for (int i = 0; i < 16; ++i) result.lane[i] = value(i);
  return result;
}

inline Floats load(const float* p) {
  Floats result;
  std::memcpy(&result, p, sizeof result);
  return result;
}
inline void store(float* p, const Floats& x) { std::memcpy(p, &x, sizeof x); }
inline Words load_words(const void* p) {
  Words result;
  std::memcpy(&result, p, sizeof result);
  return result;
}
inline void store_words(void* p, const Words& x) { std::memcpy(p, &x, sizeof x); }
inline Floats broadcast(float x) {
  return lanes<Floats>([&](int) { return x; });
}
inline Ints broadcast_int(int32_t x) {
  return lanes<Ints>([&](int) { return x; });
}
inline Floats zeros() { return broadcast(0.0f); }

inline Floats add(const Floats& a, const Floats& b) {
  return lanes<Floats>([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Floats sub(const Floats& a, const Floats& b) {
  return lanes<Floats>([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline Floats mul(const Floats& a, const Floats& b) {
  return lanes<Floats>([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Floats div(const Floats& a, const Floats& b) {
  return lanes<Floats>([&](int i) { return a.lane[i] / b.lane[i]; });
}
// a * b + c, rounded twice: compiled without contraction, so that it is the same everywhere.
inline Floats fma(const Floats& a, const Floats& b, const Floats& c) {
  return lanes<Floats>([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
}
// b where either is no number.
inline Floats max(const Floats& a, const Floats& b) {
  return lanes<Floats>([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Floats min(const Floats& a, const Floats& b) {
  return lanes<Floats>([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Floats abs(const Floats& a) {
  return lanes<Floats>([&](int i) { return same_bits<float>(same_bits<uint32_t>(a.lane[i]) & 0x7fffffffu); });
}
inline float sum(Floats a) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) a.lane[i] += a.lane[half + i];
  return a.lane[0];
}
inline float largest(Floats a) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) a.lane[i] = a.lane[i] > a.lane[half + i] ? a.lane[i] : a.lane[half + i];
  return a.lane[0];
}

// The first `count` lanes of x, `other` in the rest; count 0 to 16.
inline Floats first_lanes(const Floats& x, int count, const Floats& other) {
  return lanes<Floats>([&](int i) { return i < count ? x.lane[i] : other.lane[i]; });
}

inline Mask at_least(const Floats& a, const Floats& b) {  // a >= b
  return lanes<Mask>([&](int i) { return a.lane[i] >= b.lane[i] ? ~0u : 0u; });
}
inline Mask both(const Mask& a, const Mask& b) {
  return lanes<Mask>([&](int i) { return a.lane[i] & b.lane[i]; });
}
inline Mask mask_of(uint32_t bits) {  // the lowest bit is the first lane
  return lanes<Mask>([&](int i) { return (bits >> i & 1u) != 0 ? ~0u : 0u; });
}
inline uint32_t bits_of(const Mask& mask) {
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= mask.lane[i] & 1u << i;
  return bits;
}
inline Floats choose(const Mask& mask, const Floats& x, const Floats& other) {
  return lanes<Floats>([&](int i) {
    return same_bits<float>((same_bits<uint32_t>(x.lane[i]) & mask.lane[i]) |
                            (same_bits<uint32_t>(other.lane[i]) & ~mask.lane[i]));
  });
}

inline Floats to_floats(const Ints& a) {
  return lanes<Floats>([&](int i) { return static_cast<float>(a.lane[i]); });
}
inline Floats as_floats(const Words& x) { return same_bits<Floats>(x); }
inline Ints load_ints(const int32_t* p) {
  return lanes<Ints>([&](int i) { return p[i]; });
}
inline Floats load_halves(const void* p) {  // 16 IEEE float16
  uint16_t halves[16];
  std::memcpy(halves, p, sizeof halves);
  return lanes<Floats>([&](int i) {
    const uint32_t sign = (halves[i] & 0x8000u) << 16, rest = halves[i] & 0x7fffu;
    // Below 2^-14 the bits count units of 2^-24; above, the exponent's offset is 112 less; the last one is infinity.
    const uint32_t small = same_bits<uint32_t>(static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f);
    const uint32_t usual = (rest << 13) + (112u << 23) + (rest >= 0x7c00u ? 112u << 23 : 0u);
    return same_bits<float>(sign | (rest < 0x400u ? small : usual));
  });
}
inline Floats load_bytes(const int8_t* p) {  // 16 int8
  return lanes<Floats>([&](int i) { return static_cast<float>(p[i]); });
}

// To nearest even, of magnitudes below 2^22: beside 1.5 * 2^23 a float32 has no place for a fraction.
constexpr float kNoFraction = 0x1.8p23f;
inline Floats round_to_integer(const Floats& x) {
  return lanes<Floats>([&](int i) { return (x.lane[i] + kNoFraction) - kNoFraction; });
}
// Of magnitudes below 2^22; of all else, anything.
inline Ints to_nearest_ints(const Floats& x) {
  return lanes<Ints>([&](int i) {
    return static_cast<int32_t>(same_bits<uint32_t>(x.lane[i] + kNoFraction) - same_bits<uint32_t>(kNoFraction));
  });
}
// Rounds to nearest even and stores 16 int8; the values lie within int8.
inline void store_bytes(int8_t* p, const Floats& x) {
  const Ints rounded = to_nearest_ints(x);
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(rounded.lane[i]);
}

// x * 2^n for a whole n of -150 to 8: in two steps, of which only the second can leave the normal numbers.
inline Floats times_power_of_two(const Floats& x, const Floats& n) {
  const Ints whole = to_nearest_ints(n);
  const auto power = [](int32_t e) { return same_bits<float>((static_cast<uint32_t>(e) + 127u) << 23); };
  return lanes<Floats>([&](int i) {
    const int32_t first = whole.lane[i] / 2;
    return x.lane[i] * power(first) * power(whole.lane[i] - first);
  });
}

// bfloat16, rounded to nearest even.
inline void store_bf16(uint16_t* p, const Floats& x) {
  for (int i = 0; i < 16; ++i) {
    const uint32_t bits = same_bits<uint32_t>(x.lane[i]);
    const uint32_t rounded = bits + (bits >> 16 & 1u) + 0x7fffu;
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;  // adding might make it a number
    p[i] = static_cast<uint16_t>((is_nan ? bits | 0x400000u : rounded) >> 16);
  }
}
inline Floats load_bf16(const uint16_t* p) {
  return lanes<Floats>([&](int i) { return same_bits<float>(static_cast<uint32_t>(p[i]) << 16); });
}

// Pairs of bfloat16, rounded to nearest even: the first ones in the low halves of the lanes.
inline Words bf16_pairs(const Floats& first, const Floats& second) {
  uint16_t halves[2][16];
  store_bf16(halves[0], first);
  store_bf16(halves[1], second);
  return lanes<Words>([&](int i) { return halves[0][i] | static_cast<uint32_t>(halves[1][i]) << 16; });
}

// One byte of each lane, 0 to 255.
template <int kByte>
inline Ints byte_of(const Words& x) {
  return lanes<Ints>([&](int i) { return static_cast<int32_t>(x.lane[i] >> 8 * kByte & 255u); });
}

// Those bits of each byte that `mask` has, shifted to the left, or of a negative kLeft to the right, so far that none of
// them leaves its byte.
template <int kLeft>
inline Words shifted_bits(const Words& x, int mask) {
  const uint32_t chosen = 0x01010101u * static_cast<uint32_t>(mask);
  return lanes<Words>([&](int i) {
    return (kLeft >= 0 ? x.lane[i] << (kLeft >= 0 ? kLeft : 0) : x.lane[i] >> (kLeft < 0 ? -kLeft : 0)) & chosen;
  });
}
// Of each byte, which is below 16, the one that it is the index of.
[[gnu::noinline]] inline Words looked_up(const Words& x, const uint8_t (&table)[16]) {
  return lanes<Words>([&](int i) {
    uint32_t word = 0;
    for (int byte = 0; byte < 4; ++byte) word |= uint32_t{table[x.lane[i] >> 8 * byte & 15u]} << 8 * byte;
    return word;
  });
}
// 2^(byte - 128) of 16 bytes; below 2, the bits of numbers that are not normal.
inline Floats half_powers_of_two(const void* p) {
  uint8_t bytes[16];
  std::memcpy(bytes, p, sizeof bytes);
  return lanes<Floats>([&](int i) {
    return same_bits<float>(bytes[i] < 2 ? uint32_t{0x200000} << bytes[i] : (bytes[i] - uint32_t{1}) << 23);
  });
}
inline Words either(const Words& a, const Words& b) {
  return lanes<Words>([&](int i) { return a.lane[i] | b.lane[i]; });
}

// Four products a lane, of unsigned bytes with the four signed bytes at `b`, added to `a`.
template <bool kSmall>  // the unsigned bytes are below 128
[[gnu::noinline]] Ints dot4(const Ints& a, const Words& bytes, const void* b) {
  uint32_t bits;
  std::memcpy(&bits, b, sizeof bits);
  const auto other = [&](int byte) { return int32_t{static_cast<int8_t>(bits >> 8 * byte & 255u)}; };
  const int32_t b0 = other(0), b1 = other(1), b2 = other(2), b3 = other(3);
  return lanes<Ints>([&](int i) {
    const auto byte = [&](int k) { return static_cast<int32_t>(bytes.lane[i] >> 8 * k & 255u); };
    return a.lane[i] + byte(0) * b0 + byte(1) * b1 + byte(2) * b2 + byte(3) * b3;
  });
}

// Two products a lane, of pairs of bfloat16 with the pair at `b`, added to `a`.
[[gnu::noinline]] inline Floats dot2(const Floats& a, const Words& pairs, const void* b) {
  uint32_t bits;
  std::memcpy(&bits, b, sizeof bits);
  const float even = same_bits<float>(bits << 16), odd = same_bits<float>(bits & 0xffff0000u);
  return lanes<Floats>([&](int i) {
    const float total = same_bits<float>(pairs.lane[i] << 16) * even + a.lane[i];
    return same_bits<float>(pairs.lane[i] & 0xffff0000u) * odd + total;
  });
}

// Transposes 16 rows of `quarters` times 16 bytes, as 4-byte words: out[i] holds word i of each row.
inline void transpose_words(const uint8_t* const* rows, int quarters, uint8_t* out, size_t out_stride) {
  for (int word = 0; word < 4 * quarters; ++word)
    for (int row = 0; row < 16; ++row) std::memcpy(out + word * out_stride + row * 4, rows[row] + word * 4, 4);
}

// 16 pairs (first[i], second[i]) of bfloat16.
inline void interleave_bf16(const uint16_t* first, const uint16_t* second, uint32_t* out) {
  for (int i = 0; i < 16; ++i) out[i] = first[i] | static_cast<uint32_t>(second[i]) << 16;
}

inline void prefetch(const void* p) { __builtin_prefetch(p); }
inline void prefetch_later(const void* p) { __builtin_prefetch(p, 0, 2); }  // second cache
inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace eagre
