// The instruction set this library is compiled for, behind one set of names.
#pragma once

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "isa/isa_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "isa/isa_avx2.h"
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include "isa/isa_neon.h"
#else
#include "isa/isa_plain.h"
#endif

// Unrolls the loop behind it, whose count is known: accumulators in an array stay in registers only in an unrolled loop.
#define EAGRE_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define EAGRE_UNROLL(count) EAGRE_PRAGMA(clang loop unroll(full))
#define EAGRE_NO_UNROLL EAGRE_PRAGMA(clang loop unroll(disable))
#else
#define EAGRE_UNROLL(count) EAGRE_PRAGMA(GCC unroll count)
#define EAGRE_NO_UNROLL EAGRE_PRAGMA(GCC unroll 1)
#endif

namespace eagre {

#ifndef EAGRE_HAS_STORE_CHOSEN
// Stores the lanes whose bits are set one after the other; returns how many.
inline int store_chosen(float* p, uint32_t bits, Floats x) {
  float lanes[16];
  store(lanes, x);
  int count = 0;
  for (; bits != 0; bits &= bits - 1) p[count++] = lanes[__builtin_ctz(bits)];
  return count;
}
#endif

}  // namespace eagre
