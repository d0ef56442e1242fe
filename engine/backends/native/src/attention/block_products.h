// The two products of attention: query rows with the keys of a block, and weights with its values.
//
// Of a row and a key, the product is summed in the order of the features; of a row and a feature of the values, in the
// order of the keys; sums of integers are exact in any order. So a row's numbers are the same, whichever rows are beside it.
#pragma once

#include <cstddef>

#include "isa/attention_isa.h"
#include "pages/key_block.h"

namespace eagre {

// Query rows that are at the same block at once, a multiple of those of one small product and of 16; what they need fits into
// the first cache.
constexpr int kRowsAtOnce = kNumFloatsRegisters >= 32 ? 32 : 48;

// What the products of one call of attention have in common.
struct ProductKind {
  Factors factors;
  int head_dim;
};

// scores[r][key] = the product of query row r and a key, of the block's first num_vectors times 16 keys. Of pages of
// integers whose sums are not of integers, the keys' scales are left to the caller. queries: num_rows times `query_bytes`;
// addends: [kBlockKeys], of bytes alone, what is added for each key; scores: [num_rows][kBlockKeys].
void multiply_keys(ProductKind kind, const Block& block, const std::byte* queries, int num_rows, int num_vectors,
                   const float* addends, float* scores);

// mix[r] = mix[r] * shrinks[r] + the sum over the first num_keys keys of the row's weight and the key's value; of pages of
// integers without the values' scales.
// weights: [num_rows], each row at a distance of kBlockKeys float32, of float32, bfloat16, integers of 16 bits or bytes;
// those behind num_keys are 0 as far as a word of keys reaches. steps: of integers alone, what a row's sum is multiplied with
// before it is added. mix: [num_rows][head_dim].
void multiply_values(ProductKind kind, const Block& block, const float* weights, int num_rows, int num_keys,
                     const float* shrinks, const float* steps, float* mix);

}  // namespace eagre
