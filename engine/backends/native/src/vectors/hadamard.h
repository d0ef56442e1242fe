// The Hadamard transform, which spreads what one feature of a vector has over many of them.
#pragma once

#include <cstdint>

namespace eagre {

// Transforms the blocks of float32[head_dim], a multiple of 16, each of as many features as the largest power of two that
// divides head_dim: feature i becomes the sum of all features j of its block, subtracting those where i & j has an odd number
// of bits, divided by the root of the block's size. So the transform is a rotation, and its own inverse. `to` may be x.
void hadamard(const float* x, int64_t head_dim, float* to);

}  // namespace eagre
