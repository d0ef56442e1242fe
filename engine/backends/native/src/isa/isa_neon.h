// Sixteen lanes as four vectors of four, on 64-bit ARM; with the instructions for dot products
// where the compiler may use them (Apple M1, Graviton 2, Raspberry Pi 5 and later).
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace eagre {

struct Floats {  // 16 float32
  float32x4_t part[4];
};
struct Ints {  // 16 int32
  int32x4_t part[4];
};
struct Words {  // 64 bytes: 16 lanes of 4 bytes or of 2 bfloat16
  uint32x4_t part[4];
};

struct Mask {  // all bits of a lane or none
  uint32x4_t part[4];
};

// value(0), ... value(3), of four lanes each.
template <class Vector, class Value>
inline Vector parts(const Value& value) {
  return {{value(0), value(1), value(2), value(3)}};
}

inline Floats load(const float* p) {
  return parts<Floats>([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, const Floats& x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.part[i]);
}
inline Words load_words(const void* p) {
  return parts<Words>([&](int i) { return vreinterpretq_u32_u8(vld1q_u8(static_cast<const uint8_t*>(p) + 16 * i)); });
}
inline void store_words(void* p, const Words& x) {
  for (int i = 0; i < 4; ++i) vst1q_u8(static_cast<uint8_t*>(p) + 16 * i, vreinterpretq_u8_u32(x.part[i]));
}
inline Floats broadcast(float x) {
  return parts<Floats>([&](int) { return vdupq_n_f32(x); });
}
inline Ints broadcast_int(int32_t x) {
  return parts<Ints>([&](int) { return vdupq_n_s32(x); });
}
inline Floats zeros() { return broadcast(0.0f); }

inline Floats add(const Floats& a, const Floats& b) {
  return parts<Floats>([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
}
inline Floats sub(const Floats& a, const Floats& b) {
  return parts<Floats>([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
}
inline Floats mul(const Floats& a, const Floats& b) {
  return parts<Floats>([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
}
inline Floats div(const Floats& a, const Floats& b) {
  return parts<Floats>([&](int i) { return vdivq_f32(a.part[i], b.part[i]); });
}
inline Floats fma(const Floats& a, const Floats& b, const Floats& c) {  // a * b + c
  return parts<Floats>([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
}
// b where either is no number.
inline float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Floats max(const Floats& a, const Floats& b) {
  return parts<Floats>([&](int i) { return larger(a.part[i], b.part[i]); });
}
inline Floats min(const Floats& a, const Floats& b) {
  return parts<Floats>([&](int i) { return vbslq_f32(vcltq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
}
inline Floats abs(const Floats& a) {
  return parts<Floats>([&](int i) { return vabsq_f32(a.part[i]); });
}
inline float sum(const Floats& a) {
  return vaddvq_f32(vaddq_f32(vaddq_f32(a.part[0], a.part[2]), vaddq_f32(a.part[1], a.part[3])));
}
inline float largest(const Floats& a) {
  return vmaxvq_f32(larger(larger(a.part[0], a.part[2]), larger(a.part[1], a.part[3])));
}

// The first `count` lanes of x, `other` in the rest; count 0 to 16.
inline Floats first_lanes(const Floats& x, int count, const Floats& other) {
  constexpr int32_t kLanes[4] = {0, 1, 2, 3};
  const int32x4_t lanes = vld1q_s32(kLanes);
  return parts<Floats>([&](int i) {
    return vbslq_f32(vcltq_s32(lanes, vdupq_n_s32(count - 4 * i)), x.part[i], other.part[i]);
  });
}

inline Mask at_least(const Floats& a, const Floats& b) {  // a >= b
  return parts<Mask>([&](int i) { return vcgeq_f32(a.part[i], b.part[i]); });
}
inline Mask both(const Mask& a, const Mask& b) {
  return parts<Mask>([&](int i) { return vandq_u32(a.part[i], b.part[i]); });
}
inline uint32x4_t bit_of_lane(int part) {
  constexpr int32_t kLanes[4] = {0, 1, 2, 3};
  return vshlq_u32(vdupq_n_u32(1u << 4 * part), vld1q_s32(kLanes));
}
inline Mask mask_of(uint32_t bits) {  // the lowest bit is the first lane
  return parts<Mask>([&](int i) { return vtstq_u32(vdupq_n_u32(bits), bit_of_lane(i)); });
}
inline uint32_t bits_of(const Mask& mask) {
  const auto own = [&](int i) { return vandq_u32(mask.part[i], bit_of_lane(i)); };
  return vaddvq_u32(vorrq_u32(vorrq_u32(own(0), own(1)), vorrq_u32(own(2), own(3))));
}
inline Floats choose(const Mask& mask, const Floats& x, const Floats& other) {
  return parts<Floats>([&](int i) { return vbslq_f32(mask.part[i], x.part[i], other.part[i]); });
}

// Of magnitudes below 2^22; of all else, anything.
inline Ints to_nearest_ints(const Floats& a) {
  return parts<Ints>([&](int i) { return vcvtnq_s32_f32(a.part[i]); });
}
inline Floats to_floats(const Ints& a) {
  return parts<Floats>([&](int i) { return vcvtq_f32_s32(a.part[i]); });
}
inline Floats as_floats(const Words& x) {  // the same bits
  return parts<Floats>([&](int i) { return vreinterpretq_f32_u32(x.part[i]); });
}
inline Ints load_ints(const int32_t* p) {
  return parts<Ints>([&](int i) { return vld1q_s32(p + 4 * i); });
}
inline Floats load_halves(const void* p) {  // 16 IEEE float16
  return parts<Floats>([&](int i) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(static_cast<const uint8_t*>(p) + 8 * i)));
  });
}
inline Floats load_bytes(const int8_t* p) {  // 16 int8
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return to_floats({{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)),
                     vmovl_high_s16(high)}});
}
// Rounds to nearest even and stores 16 int8; the values lie within int8.
inline void store_bytes(int8_t* p, const Floats& x) {
  const auto narrow = [](float32x4_t low, float32x4_t high) {
    return vmovn_high_s32(vmovn_s32(vcvtnq_s32_f32(low)), vcvtnq_s32_f32(high));
  };
  const int16x8_t low = narrow(x.part[0], x.part[1]), high = narrow(x.part[2], x.part[3]);
  vst1q_s8(p, vmovn_high_s16(vmovn_s16(low), high));
}

inline Floats round_to_integer(const Floats& x) {  // to nearest even
  return parts<Floats>([&](int i) { return vrndnq_f32(x.part[i]); });
}
// x * 2^n for a whole n of -150 to 8: in two steps, of which only the second can leave the normal numbers.
inline Floats times_power_of_two(const Floats& x, const Floats& n) {
  const auto power = [](int32x4_t e) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(e, vdupq_n_s32(127)), 23)); };
  return parts<Floats>([&](int i) {
    const int32x4_t whole = vcvtnq_s32_f32(n.part[i]), first = vshrq_n_s32(whole, 1);
    return vmulq_f32(vmulq_f32(x.part[i], power(first)), power(vsubq_s32(whole, first)));
  });
}

// bfloat16, rounded to nearest even.
inline void store_bf16(uint16_t* p, const Floats& x) {
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x.part[i]);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t number = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));  // adding might make NaN a number
    const uint32x4_t rounded = vbslq_u32(vceqq_f32(x.part[i], x.part[i]), number, quiet);
    vst1_u16(p + 4 * i, vshrn_n_u32(rounded, 16));
  }
}
inline Floats load_bf16(const uint16_t* p) {
  return parts<Floats>([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}

// Pairs of bfloat16, rounded to nearest even: the first ones in the low halves of the lanes.
inline Words bf16_pairs(const Floats& first, const Floats& second) {
  uint16_t halves[2][16];
  store_bf16(halves[0], first);
  store_bf16(halves[1], second);
  return parts<Words>([&](int i) {
    return vorrq_u32(vmovl_u16(vld1_u16(halves[0] + 4 * i)), vshll_n_u16(vld1_u16(halves[1] + 4 * i), 16));
  });
}

// One byte of each lane, 0 to 255.
template <int kByte>
inline Ints byte_of(const Words& x) {
  return parts<Ints>([&](int i) {
    const uint32x4_t moved = vshlq_u32(x.part[i], vdupq_n_s32(-8 * kByte));
    return vreinterpretq_s32_u32(vandq_u32(moved, vdupq_n_u32(255)));
  });
}

// Those bits of each byte that `mask` has, shifted to the left, or of a negative kLeft to the right, so far that none of
// them leaves its byte.
template <int kLeft>
inline Words shifted_bits(const Words& x, int mask) {
  const uint32x4_t chosen = vdupq_n_u32(0x01010101u * static_cast<uint32_t>(mask));
  const int32x4_t left = vdupq_n_s32(kLeft);  // the instruction shifts by negative counts, too
  return parts<Words>([&](int i) { return vandq_u32(vshlq_u32(x.part[i], left), chosen); });
}
// Of each byte, which is below 16, the one that it is the index of.
inline Words looked_up(const Words& x, const uint8_t (&table)[16]) {
  const uint8x16_t all = vld1q_u8(table);
  return parts<Words>([&](int i) {
    return vreinterpretq_u32_u8(vqtbl1q_u8(all, vreinterpretq_u8_u32(x.part[i])));
  });
}
// 2^(byte - 128) of 16 bytes; below 2, the bits of numbers that are not normal.
inline Floats half_powers_of_two(const void* p) {
  uint8_t bytes[16];
  std::memcpy(bytes, p, sizeof bytes);
  float powers[16];
  for (int i = 0; i < 16; ++i) {
    const uint32_t bits = bytes[i] < 2 ? uint32_t{0x200000} << bytes[i] : (bytes[i] - uint32_t{1}) << 23;
    std::memcpy(&powers[i], &bits, sizeof bits);
  }
  return load(powers);
}
inline Words either(const Words& a, const Words& b) {
  return parts<Words>([&](int i) { return vorrq_u32(a.part[i], b.part[i]); });
}

inline uint32x4_t broadcast_word(const void* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return vdupq_n_u32(word);
}

// Products of signed bytes, summed in fours, added to `a`.
inline int32x4_t dot_signed(int32x4_t a, int8x16_t x, int8x16_t y) {
#ifdef __ARM_FEATURE_DOTPROD
  return vdotq_s32(a, x, y);
#else
  const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(y)), high = vmull_high_s8(x, y);
  return vaddq_s32(a, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}

// Four products a lane, of unsigned bytes with the four signed bytes at `b`, added to `a`.
template <bool kSmall>  // the unsigned bytes are below 128
inline Ints dot4(const Ints& a, const Words& bytes, const void* b) {
  const int8x16_t other = vreinterpretq_s8_u32(broadcast_word(b));
#ifdef __ARM_FEATURE_MATMUL_INT8
  return parts<Ints>([&](int i) { return vusdotq_s32(a.part[i], vreinterpretq_u8_u32(bytes.part[i]), other); });
#else
  if constexpr (kSmall) {
    return parts<Ints>([&](int i) { return dot_signed(a.part[i], vreinterpretq_s8_u32(bytes.part[i]), other); });
  } else {  // of the bytes less 128, which are signed, and 128 times the sum of b's
    const int32x4_t short_by = dot_signed(vdupq_n_s32(0), vdupq_n_s8(-128), other);
    return parts<Ints>([&](int i) {
      const int8x16_t x = vreinterpretq_s8_u32(veorq_u32(bytes.part[i], vdupq_n_u32(0x80808080)));
      return vsubq_s32(dot_signed(a.part[i], x, other), short_by);
    });
  }
#endif
}

// Two products a lane, of pairs of bfloat16 with the pair at `b`, added to `a`.
inline Floats dot2(const Floats& a, const Words& pairs, const void* b) {
  const auto even = [](uint32x4_t x) { return vreinterpretq_f32_u32(vshlq_n_u32(x, 16)); };
  const auto odd = [](uint32x4_t x) { return vreinterpretq_f32_u32(vandq_u32(x, vdupq_n_u32(0xffff0000u))); };
  const uint32x4_t other = broadcast_word(b);
  return parts<Floats>([&](int i) {
    const float32x4_t total = vfmaq_f32(a.part[i], even(pairs.part[i]), even(other));
    return vfmaq_f32(total, odd(pairs.part[i]), odd(other));
  });
}

// Transposes 16 rows of `quarters` times 16 bytes, as 4-byte words: out[i] holds word i of each row.
inline void transpose_words(const uint8_t* const* rows, int quarters, uint8_t* out, size_t out_stride) {
  for (int q = 0; q < quarters; ++q) {
    for (int four = 0; four < 4; ++four) {
      const auto part = [&](int i) { return vreinterpretq_u32_u8(vld1q_u8(rows[4 * four + i] + 16 * q)); };
      const uint32x4x2_t a = vtrnq_u32(part(0), part(1)), b = vtrnq_u32(part(2), part(3));
      const auto put = [&](int word, uint32x2_t low, uint32x2_t high) {
        vst1q_u8(out + (4 * q + word) * out_stride + 16 * four, vreinterpretq_u8_u32(vcombine_u32(low, high)));
      };
      put(0, vget_low_u32(a.val[0]), vget_low_u32(b.val[0]));
      put(1, vget_low_u32(a.val[1]), vget_low_u32(b.val[1]));
      put(2, vget_high_u32(a.val[0]), vget_high_u32(b.val[0]));
      put(3, vget_high_u32(a.val[1]), vget_high_u32(b.val[1]));
    }
  }
}

// 16 pairs (first[i], second[i]) of bfloat16.
inline void interleave_bf16(const uint16_t* first, const uint16_t* second, uint32_t* out) {
  for (int i = 0; i < 16; i += 8) {
    const uint16x8x2_t pairs = vzipq_u16(vld1q_u16(first + i), vld1q_u16(second + i));
    vst1q_u8(reinterpret_cast<uint8_t*>(out + i), vreinterpretq_u8_u16(pairs.val[0]));
    vst1q_u8(reinterpret_cast<uint8_t*>(out + i + 4), vreinterpretq_u8_u16(pairs.val[1]));
  }
}

inline void prefetch(const void* p) { __builtin_prefetch(p); }
inline void prefetch_later(const void* p) { __builtin_prefetch(p, 0, 2); }  // second cache
inline void pause() { asm volatile("yield"); }

}  // namespace eagre
