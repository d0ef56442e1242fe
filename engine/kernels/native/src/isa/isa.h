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

// Before a loop whose count is known: accumulators in an array stay in registers only when it is unrolled.
#define EAGRE_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define EAGRE_UNROLL(count) EAGRE_PRAGMA(clang loop unroll(full))
#else
#define EAGRE_UNROLL(count) EAGRE_PRAGMA(GCC unroll count)
#endif

namespace eagre {

// 2^x for x <= 0, to 2 units in the last place; 0 for -infinity, NaN for NaN. The fraction of x, within half
// of 0, goes through the Taylor polynomial of 2^x to the sixth power.
inline Floats exp2(Floats x) {
  const Floats bounded = max(broadcast(-150.0f), x);  // 2^-150 rounds to 0; of NaN max gives its second operand
  const Floats whole = round_to_integer(bounded);
  const Floats r = sub(bounded, whole);
  Floats y = broadcast(1.5403530e-4f);
  y = fma(y, r, broadcast(1.3333558e-3f));
  y = fma(y, r, broadcast(9.6181291e-3f));
  y = fma(y, r, broadcast(5.5504109e-2f));
  y = fma(y, r, broadcast(2.4022651e-1f));
  y = fma(y, r, broadcast(6.9314718e-1f));
  y = fma(y, r, broadcast(1.0f));
  return times_power_of_two(y, whole);
}

// e^x for x <= 0, to 2 units in the last place; 0 for -infinity, NaN for NaN. x less a multiple of log 2, which is
// subtracted in two parts so that nothing of x is lost, goes through the Taylor polynomial to the seventh power.
inline Floats exp(Floats x) {
  const Floats bounded = max(broadcast(-103.9f), x);  // below, it rounds to 0; of NaN max gives its second operand
  const Floats whole = round_to_integer(mul(bounded, broadcast(1.44269504f)));
  Floats r = fma(whole, broadcast(-0.693359375f), bounded);  // of 9 bits: products with whole numbers are exact
  r = fma(whole, broadcast(2.12194440e-4f), r);
  Floats y = broadcast(1.9841270e-4f);
  y = fma(y, r, broadcast(1.3888889e-3f));
  y = fma(y, r, broadcast(8.3333333e-3f));
  y = fma(y, r, broadcast(4.1666667e-2f));
  y = fma(y, r, broadcast(1.6666667e-1f));
  y = fma(y, r, broadcast(0.5f));
  y = fma(y, r, broadcast(1.0f));
  y = fma(y, r, broadcast(1.0f));
  return times_power_of_two(y, whole);
}

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
