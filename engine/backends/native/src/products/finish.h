// What is done to the sums of a product before they are stored.
#pragma once

#include <cstdint>

#include "isa/isa.h"
#include "vectors/elementary.h"

namespace eagre {

// The values of the first seven are those of Activation in engine/backends/base/operands.py, and the eighth and the last
// are those of gated products with a Clamp.
enum class Finish : int64_t {
  kNone = 0,
  kSilu = 1,
  kGeluTanh = 2,
  kGeluErf = 3,
  kRelu = 4,
  kReluSquared = 5,
  kQuickGelu = 6,
  kClamped = 7,  // z * logistic(scale * z) of z = min(x, softcap), whose partner is clamped to +-softcap, plus 1
  kScaled = 8,   // scale * x
  kCapped = 9,   // softcap * tanh(scale * x / softcap)
  kLimited = 10,  // the smaller of silu(x) and softcap, whose partner is clamped to +-softcap: another Clamp
};

// x * logistic(z) for an x of z's sign and e = e^(-|z|), which is never larger than 1 and so cannot overflow.
inline Floats times_logistic(Floats x, Floats e) {
  const Floats positive = max(x, zeros()), negative = sub(x, positive);
  return div(fma(negative, e, positive), add(broadcast(1.0f), e));
}

// 1 / (1 + e^-x)
inline Floats logistic(Floats x) {
  const Floats e = exp2(mul(sub(zeros(), abs(x)), broadcast(kLog2E))), one = broadcast(1.0f);
  return div(choose(at_least(x, zeros()), one, e), add(one, e));
}

// x * logistic(x)
inline Floats silu(Floats x) { return times_logistic(x, exp2(mul(sub(zeros(), abs(x)), broadcast(kLog2E)))); }

// The approximation with tanh (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016), x / 2 * (1 + tanh z), which
// is x * logistic(2 z) with z = sqrt(2 / pi) * (x + 0.044715 x^3).
inline Floats gelu_tanh(Floats x) {
  const Floats inner = mul(x, fma(mul(x, x), broadcast(0.044715f), broadcast(1.0f)));
  return times_logistic(x, exp2(mul(abs(inner), broadcast(-2.0f * 0.797884561f * kLog2E))));
}

// x times the probability that a normally distributed number is below x, which is x / 2 * (1 + erf(x / sqrt(2))).
inline Floats gelu_erf(Floats x) {
  const Floats tail = mul(x, normal_tail(abs(x)));
  return choose(at_least(x, zeros()), sub(x, tail), tail);
}

// x * logistic(1.702 x), another approximation of Hendrycks and Gimpel
inline Floats quick_gelu(Floats x) { return times_logistic(x, exp2(mul(abs(x), broadcast(-1.702f * kLog2E)))); }

inline Floats relu(Floats x) { return max(zeros(), x); }  // of a NaN, max gives its second operand

template <Finish F>
inline Floats finish(Floats x, float scale, float softcap) {
  if constexpr (F == Finish::kSilu) return silu(x);
  if constexpr (F == Finish::kGeluTanh) return gelu_tanh(x);
  if constexpr (F == Finish::kGeluErf) return gelu_erf(x);
  if constexpr (F == Finish::kRelu) return relu(x);
  if constexpr (F == Finish::kReluSquared) return mul(relu(x), relu(x));
  if constexpr (F == Finish::kQuickGelu) return quick_gelu(x);
  if constexpr (F == Finish::kClamped) {
    const Floats z = min(broadcast(softcap), x);  // of a NaN, min gives its second operand
    return times_logistic(z, exp2(mul(abs(mul(z, broadcast(scale))), broadcast(-kLog2E))));
  }
  if constexpr (F == Finish::kLimited) return min(broadcast(softcap), silu(x));
  if constexpr (F == Finish::kScaled) return mul(x, broadcast(scale));
  if constexpr (F == Finish::kCapped) {
    const Floats cap = broadcast(softcap);
    return mul(cap, tanh(div(mul(x, broadcast(scale)), cap)));
  }
  return x;
}

// What a finished gate is multiplied with.
template <Finish F>
inline Floats finish_partner(Floats x, float softcap) {
  if constexpr (F == Finish::kClamped) {
    return add(max(broadcast(-softcap), min(broadcast(softcap), x)), broadcast(1.0f));
  }
  if constexpr (F == Finish::kLimited) return max(broadcast(-softcap), min(broadcast(softcap), x));
  return x;
}

}  // namespace eagre
