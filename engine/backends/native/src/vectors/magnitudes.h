// How large the numbers of a vector of float32 are, whose length is a multiple of 16.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "isa/isa.h"

namespace eagre {

constexpr float kInt8Max = 127.0f;
constexpr float kInt16Max = 32767.0f;

// What numbers are multiplied with to be counted in steps of `scale`; 0 for a scale that is next to nothing, whose inverse,
// or that times kInt16Max, would be infinite.
constexpr float kLeastScale = 1e-33f;
inline float inverse_of(float scale) { return scale >= kLeastScale ? 1.0f / scale : 0.0f; }
inline Floats inverses_of(Floats scales) {
  const Floats least = broadcast(kLeastScale);
  return choose(at_least(scales, least), div(broadcast(1.0f), max(scales, least)), zeros());
}

inline float largest_magnitude(const float* x, int64_t count) {
  Floats most = zeros();
  for (int64_t i = 0; i < count; i += 16) most = max(most, abs(load(x + i)));
  return largest(most);
}

// The step in which a vector is counted by integers of 16 bits whose product with another such vector fits an int32: no
// product is larger than the vectors' lengths (Cauchy and Schwarz), of which rounding changes each by 13 at most.
constexpr float kInt16Length = 46300.0f;
inline float int16_step(const float* x, int64_t count) {
  const float most = largest_magnitude(x, count);
  const Floats inverse = broadcast(inverse_of(most));
  Floats squares = zeros();
  for (int64_t i = 0; i < count; i += 16) {
    const Floats part = mul(load(x + i), inverse);
    squares = fma(part, part, squares);
  }
  return most * std::max(1.0f / kInt16Max, std::sqrt(sum(squares)) / kInt16Length);
}

// 0, or NaN where a value is infinite or NaN: quantised, such a value would look like any other.
inline float not_finite(const float* x, int64_t count) {
  Floats trace = zeros();
  for (int64_t i = 0; i < count; i += 16) trace = fma(load(x + i), zeros(), trace);
  return sum(trace);
}

}  // namespace eagre
