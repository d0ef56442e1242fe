// The two products of attention, see block_products.h, of pages of int8 with integers of 16 bits (Factors::kBytePairs).
// Sums are exact, so they are the same in any order. These products have a source of their own, because in a larger one GCC
// inlines less.
#pragma once

#include <cstddef>

#include "pages/key_block.h"

namespace eagre::in_bytes {

void multiply_keys(int head_dim, const Block& block, const std::byte* queries, int num_rows, int num_vectors,
                   float* scores);

void multiply_values(int head_dim, const Block& block, const float* weights, int num_rows, int num_keys,
                     const float* shrinks, const float* steps, float* mix);

}  // namespace eagre::in_bytes
