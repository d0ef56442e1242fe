// Pages that lie as the products of attention read them.
//
// Pages of a multiple of 32 tokens are packed: in the place of the vectors of 32 tokens of a head lie
//   keys    [head_dim in words][32 tokens]: a word holds one, two or four features, by the bytes that they take
//   values  [32 tokens in words][head_dim]: a word holds a feature of one, two or four tokens
// where bytes of keys have no sign, and their zero is kByteZero. So a vector is laid out once, when it is written, and no
// more when it is read. Pages of other sizes, and those whose keys are their values, hold one vector behind the other.
#pragma once

#include <cstdint>

#include "pages/key_block.h"
#include "pages/pages.h"

namespace eagre {

inline bool is_packed(const Pages& pages) { return pages.page_size % kHalfKeys == 0 && pages.num_parts == 2; }

// Writes a token's vector x, float32[head_dim], to the page. part: 0 for keys, 1 for values; vector: see `vector_index`;
// of pages of integers x is what the scale leaves of it.
void write_packed(const Pages& pages, int part, int64_t vector, const float* x);

// Asks for the memory that `write_packed` will write to: a key lies in as many lines of it as it has words.
void prefetch_packed(const Pages& pages, int part, int64_t vector);

// Makes a block of packed pages: `gather` for them. What lies as products load it is not copied. The block looks ahead at
// the pages of what is ahead, and its products ask for them, so that they are on their way while the block is attended to.
void gather_packed(Walk& walk, const Pages& pages, int64_t head, int num_hidden, int count, Ahead ahead, Block& block);

}  // namespace eagre
