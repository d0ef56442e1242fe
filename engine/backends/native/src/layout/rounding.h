// How groups of values are rounded to bytes.
#pragma once

#include <cfloat>
#include <cstdint>

#include "isa/isa.h"

namespace eagre {

// Bytes are of -120 to 120 and not to 127, so that a number of 4 bits can be added to one of them: see
// tiles/pair_products.cc.
constexpr float kMostByte = 120.0f;

// A group gets an offset where its scale with one is at most this part of its scale without. Where all values are on one
// side of 0, that is about half. The offset's product with the weights is a work of its own: with 0.55 one group in sixty
// of SmolLM2-135M has an offset, and half of the perplexity is won back that rounding costs; with 0.85 every second group
// has one, and two thirds are won back.
constexpr float kMostScaleRatio = 0.55f;

// A lane is a group, whose value is scale * byte + offset.
struct Rounding {
  Floats scales, offsets;
  uint32_t have_offsets;  // a bit for each lane

  Rounding(Floats smallest, Floats largest) {
    const Floats half = broadcast(0.5f), steps = broadcast(kMostByte);
    const Floats middle = fma(largest, half, mul(smallest, half));
    const Floats around_zero = div(max(largest, sub(zeros(), smallest)), steps);
    // From the middle as float32 has it: of values that are nearly the same, it may be one of them.
    const Floats around_middle = div(max(sub(largest, middle), sub(middle, smallest)), steps);
    // Not where all values are 0. Where one is not finite, the row's results are NaN whatever is said here.
    const Mask is_moved = at_least(mul(around_zero, broadcast(kMostScaleRatio)), add(around_middle, broadcast(FLT_MIN)));
    // A scale is neither so small that its inverse overflows nor so small that it is flushed to zero.
    scales = max(choose(is_moved, around_middle, around_zero), broadcast(FLT_MIN));
    offsets = choose(is_moved, middle, zeros());
    have_offsets = bits_of(is_moved);
  }
};

}  // namespace eagre
