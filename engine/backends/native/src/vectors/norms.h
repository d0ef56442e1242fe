// Norms of a vector of float32, whose length is a multiple of 16.
#pragma once

#include <cmath>
#include <cstdint>

#include "isa/isa.h"

namespace eagre {

// The values are those of NormKind in engine/backends/base/operands.py.
enum class NormKind : int64_t { kNone = 0, kRms = 1, kLayer = 2 };

struct Norm {
  NormKind kind;
  const float* weights;
  const float* bias;  // of a LayerNorm, or null
  float epsilon;
};

// What an RMS norm (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019) multiplies a vector with.
inline float inverse_rms(const float* x, int64_t count, float epsilon) {
  Floats squares = zeros();
  for (int64_t i = 0; i < count; i += 16) squares = fma(load(x + i), load(x + i), squares);
  return 1.0f / std::sqrt(sum(squares) / static_cast<float>(count) + epsilon);
}

// to = x * factor * weights
inline void scale_by(const float* x, float factor, const float* weights, int64_t count, float* to) {
  const Floats factors = broadcast(factor);
  for (int64_t i = 0; i < count; i += 16) store(to + i, mul(mul(load(x + i), factors), load(weights + i)));
}

// Ba, Kiros and Hinton, "Layer Normalization", 2016. The deviations are summed around the mean, in a second pass: the
// mean of the squares less the square of the mean would lose what a vector far from 0 has.
inline void layer_norm(const Norm& norm, const float* x, int64_t count, float* to) {
  Floats total = zeros(), squares = zeros();
  for (int64_t i = 0; i < count; i += 16) total = add(total, load(x + i));
  const Floats mean = broadcast(sum(total) / static_cast<float>(count));
  for (int64_t i = 0; i < count; i += 16) {
    const Floats deviation = sub(load(x + i), mean);
    squares = fma(deviation, deviation, squares);
    store(to + i, deviation);
  }
  scale_by(to, 1.0f / std::sqrt(sum(squares) / static_cast<float>(count) + norm.epsilon), norm.weights, count, to);
  if (norm.bias == nullptr) return;
  for (int64_t i = 0; i < count; i += 16) store(to + i, add(load(to + i), load(norm.bias + i)));
}

// Normalises x by a kind of norm that is not none.
inline void normalise(const Norm& norm, const float* x, int64_t count, float* to) {
  if (norm.kind == NormKind::kLayer) {
    layer_norm(norm, x, count, to);
  } else {
    scale_by(x, inverse_rms(x, count, norm.epsilon), norm.weights, count, to);
  }
}

}  // namespace eagre
