// Elementary functions of sixteen float32, the same for every instruction set but for the rounding of fma.
#pragma once

#include "isa/isa.h"

namespace eagre {

constexpr float kLog2E = 1.44269504f;

// 2^x for x <= 8, to 2 units in the last place; 0 for -infinity, NaN for NaN. The fraction of x, which is within half of
// 0, goes through the Taylor polynomial of 2^x to the sixth power.
inline Floats exp2(Floats x) {
  const Floats bounded = max(broadcast(-150.0f), x);  // 2^-150 rounds to 0; of a NaN, max gives its second operand
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

// e^x for x <= 0, to 2 units in the last place; 0 for -infinity, NaN for NaN. A multiple of log 2 is subtracted from x
// in two parts, so that nothing of x is lost; the rest goes through the Taylor polynomial to the seventh power.
inline Floats exp(Floats x) {
  const Floats bounded = max(broadcast(-103.9f), x);  // below, it rounds to 0; of a NaN, max gives its second operand
  const Floats whole = round_to_integer(mul(bounded, broadcast(kLog2E)));
  Floats r = fma(whole, broadcast(-0.693359375f), bounded);  // has 9 bits: its products with whole numbers are exact
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

// tanh x, to a relative 3e-7; NaN for NaN. Near 0 it is x times a polynomial in x^2, fitted so that the largest relative
// error is as small as possible; elsewhere it comes from e^(-2 |x|), which loses no digits there.
inline Floats tanh(Floats x) {
  const Floats magnitude = abs(x), square = mul(x, x);
  Floats y = broadcast(-5.7049831e-3f);
  y = fma(y, square, broadcast(2.0639084e-2f));
  y = fma(y, square, broadcast(-5.3739714e-2f));
  y = fma(y, square, broadcast(1.3331442e-1f));
  y = fma(y, square, broadcast(-3.3333282e-1f));
  const Floats near = fma(mul(x, square), y, x);
  const Floats e = exp2(mul(magnitude, broadcast(-2.0f * kLog2E))), one = broadcast(1.0f);
  const Floats far = div(sub(one, e), add(one, e));
  const Floats with_sign = choose(at_least(x, zeros()), far, sub(zeros(), far));
  return choose(at_least(broadcast(0.625f), magnitude), near, with_sign);
}

// The probability that a normally distributed number lies more than x above the mean, for x >= 0, in standard
// deviations; to a relative 1e-6 as long as x is below 3. With t = 1 / (1 + 0.31 x), the probability divided by
// e^(-x^2 / 2) is t times a polynomial in t, fitted so that the largest relative error is as small as possible.
inline Floats normal_tail(Floats x) {
  const Floats t = div(broadcast(1.0f), fma(x, broadcast(0.31f), broadcast(1.0f)));
  Floats y = broadcast(3.58406127e-2f);
  y = fma(y, t, broadcast(-1.4159965e-1f));
  y = fma(y, t, broadcast(1.55058758e-1f));
  y = fma(y, t, broadcast(-1.48943986e-2f));
  y = fma(y, t, broadcast(1.1010501e-1f));
  y = fma(y, t, broadcast(1.07772769e-1f));
  y = fma(y, t, broadcast(1.2406005e-1f));
  y = fma(y, t, broadcast(1.23656931e-1f));
  return mul(mul(y, t), exp(mul(mul(x, x), broadcast(-0.5f))));
}

}  // namespace eagre
