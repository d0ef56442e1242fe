// The two products of attention, see block_products.h, of pages of integers (Factors::kBytes and kInt16Pairs). Sums are
// exact, so they are the same in any order. These products have a source of their own, because in a larger one GCC inlines
// less.
#pragma once

#include <cstddef>

#include "attention/block_products.h"
#include "pages/key_block.h"

namespace eagre::in_integers {

void multiply_keys(ProductKind kind, const Block& block, const std::byte* queries, int num_rows, int num_vectors,
                   const float* addends, float* scores);

void multiply_values(ProductKind kind, const Block& block, const float* weights, int num_rows, int num_keys,
                     const float* shrinks, const float* steps, float* mix);

}  // namespace eagre::in_integers
